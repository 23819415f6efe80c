//! Findings of policies and of the sandbox, in one form. The field names are part of the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of findings reported for one execution.
pub const MAX_FINDINGS: usize = 100;

/// A problem that a policy found in the code, or an action that the sandbox denied.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct Finding {
    /// Stable id of the rule, e.g. `PY-PROCESS` or `network-host`.
    pub rule: String,
    /// Category, e.g. `process`, `filesystem` or `network`.
    pub category: String,
    /// Severity: `info`, `warning`, `error`, or another severity of the policy rules.
    pub severity: String,
    /// Message that says what was found or denied.
    pub message: String,
    /// Line in the code, from 1; null if the finding is about the execution.
    pub line: Option<u32>,
    /// Column in characters, from 1.
    pub column: Option<u32>,
    /// How to fix it: the setting that would allow it, or what to write instead.
    pub suggestion: String,
    /// The policy line or the setting that decided.
    pub decided_by: String,
}
