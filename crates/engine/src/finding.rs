//! Findings: what was noticed about a run, before it or during it, in one form. Their names are fixed.

use serde::{Deserialize, Serialize};

/// So many are reported of what was noticed during a run; more help nobody.
pub const MAX_FINDINGS: usize = 100;

/// Something a policy minds in the code, or something that the sandbox kept the program from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Finding {
    /// A stable id: `PY-PROCESS`, `network-host`.
    pub rule: String,
    /// What it is about: `process`, `filesystem`, `network` and their kin.
    pub category: String,
    /// `info`, `warning` or `error`, and what a policy's rules have besides.
    pub severity: String,
    /// What was found, or what was kept from happening.
    pub message: String,
    /// In the code, from 1; null where it is known of the run only.
    pub line: Option<u32>,
    /// In characters, from 1.
    pub column: Option<u32>,
    /// What to do: the setting that would allow it, or what to write instead.
    pub suggestion: String,
    /// The line of the policy, or the setting, that decided.
    pub decided_by: String,
}
