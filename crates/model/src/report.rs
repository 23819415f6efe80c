//! The result object, shared by the command line, HTTP, MCP and the Python package. The field names are part
//! of the API.

use std::str::FromStr;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::finding::Finding;
use crate::json_text::JsonText;
use crate::layer::Layer;
use crate::outcome::{Limit, Receipt, Usage, Warmth};

/// Status of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waits for a free slot.
    Queued,
    /// Is running.
    Running,
    /// Exited with status 0.
    Succeeded,
    /// Exited with another status, killed by a signal, or returned something that is not JSON.
    Failed,
    /// Killed at its time limit.
    TimedOut,
    /// Ended because of another limit.
    LimitExceeded,
    /// Refused by a policy; nothing ran.
    Refused,
    /// Canceled by the caller.
    Cancelled,
    /// The server died during the execution.
    Interrupted,
}

impl Status {
    /// Every status, in the order of an execution's life.
    pub const ALL: [Self; 9] = [
        Self::Queued,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::TimedOut,
        Self::LimitExceeded,
        Self::Refused,
        Self::Cancelled,
        Self::Interrupted,
    ];

    /// Returns its name, as in the JSON of a result.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::LimitExceeded => "limit_exceeded",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }

    /// Returns whether the execution has ended.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

impl FromStr for Status {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|status| status.name() == text)
            .ok_or_else(|| format!("must be one of {}", Self::ALL.map(Self::name).join(" ")))
    }
}

/// Result of an execution.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Result")]
pub struct Report {
    /// In a batch: line number of the request, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
    /// Execution id.
    pub id: String,
    /// Outcome of the program, or `queued` or `running`.
    pub status: Status,
    /// Exit code; null if the program was killed by a signal or did not run.
    pub exit_code: Option<u8>,
    /// Name of the signal that killed the program, such as `SIGSEGV`.
    pub signal: Option<String>,
    /// Limit that ended the program: memory, processes, disk or output.
    pub limit: Option<Limit>,
    /// Standard output; the middle is left out if it exceeds the limit.
    pub stdout: String,
    /// Standard error; the middle is left out if it exceeds the limit.
    pub stderr: String,
    /// Whether a part of `stdout` is left out.
    pub stdout_truncated: bool,
    /// Whether a part of `stderr` is left out.
    pub stderr_truncated: bool,
    /// Standard output in base64; only present if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    /// Standard error in base64; only present if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// Return value of `main`.
    pub result: ResultValue,
    /// Files that the program left below `./artifacts`.
    pub artifacts: Vec<ArtifactReport>,
    /// Reason for the failure in one line that a person can act on; null on success.
    pub error: Option<String>,
    /// Findings of the policy and of the run.
    pub findings: Vec<Finding>,
    /// Packages that were installed.
    pub dependencies: DependenciesReport,
    /// Wall-clock time of the program in milliseconds.
    pub duration_ms: f64,
    /// Resources that the program used.
    pub usage: Usage,
    /// Isolation that was enforced; null if nothing ran, and until the execution ends.
    pub receipt: Option<Receipt>,
    /// Metadata of the request.
    pub metadata: Map<String, Value>,
}

/// Return value of `main`.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[schemars(rename = "Returned")]
pub struct ResultValue {
    /// Whether `main` was called and returned.
    pub present: bool,
    /// The returned value, with the exact digits of its numbers; null if absent.
    pub value: JsonText,
}

/// A file that the program left in `./artifacts`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Artifact")]
pub struct ArtifactReport {
    /// Path below `./artifacts`, such as `plots/a.png`.
    pub name: String,
    /// MIME type, by file extension or content.
    pub mime_type: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Content in base64; null if it is at `url`.
    #[serde(rename = "content_base64", serialize_with = "serialize_base64")]
    #[schemars(with = "Option<String>")]
    pub content: Option<Vec<u8>>,
    /// Path on the server from which the content can be fetched; only present if it is not in `content_base64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

fn serialize_base64<S: Serializer>(content: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    match content {
        Some(bytes) => serializer.collect_str(&Base64Display::new(bytes, &STANDARD)),
        None => serializer.serialize_none(),
    }
}

/// Packages installed for an execution or a sandbox.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[schemars(rename = "Installed")]
pub struct DependenciesReport {
    /// Names with versions, such as `numpy==2.1.0` or `lodash@4.17.21`.
    pub packages: Vec<String>,
    /// Whether the packages were cached: `hit`, `miss` or `none`.
    pub cache: CacheResult,
    /// Time spent installing in milliseconds.
    pub install_ms: u64,
}

/// Whether packages were cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CacheResult {
    /// All layers were cached.
    Hit,
    /// Packages had to be installed.
    Miss,
    /// No packages were needed.
    #[default]
    None,
}

impl Report {
    /// Returns a report of an execution that ran nothing: everything but its id, status, error and metadata is
    /// empty.
    pub fn blank(id: String, status: Status, error: Option<String>, metadata: Map<String, Value>) -> Self {
        Self {
            index: None,
            id,
            status,
            exit_code: None,
            signal: None,
            limit: None,
            stdout: String::new(),
            stderr: String::new(),
            stdout_truncated: false,
            stderr_truncated: false,
            stdout_base64: None,
            stderr_base64: None,
            result: ResultValue::default(),
            artifacts: Vec::new(),
            error,
            findings: Vec::new(),
            dependencies: DependenciesReport::default(),
            duration_ms: 0.0,
            usage: Usage::default(),
            receipt: None,
            metadata,
        }
    }

    /// Returns the enforced layers.
    pub fn isolation(&self) -> &[Layer] {
        self.receipt.as_ref().map_or(&[], |receipt| &receipt.isolation)
    }

    /// Returns whether a warm interpreter served the execution.
    pub fn warmth(&self) -> Warmth {
        self.receipt.as_ref().map_or(Warmth::Cold, |receipt| receipt.warm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_the_names_of_the_result_object() {
        for status in Status::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
            assert_eq!(status.name().parse(), Ok(status));
            assert_eq!(status.is_final(), !["queued", "running"].contains(&status.name()));
        }
        assert!("done".parse::<Status>().unwrap_err().starts_with("must be one of queued"));
    }
}
