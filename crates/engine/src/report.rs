//! The result object, shared by the command line, HTTP, MCP and the Python package. The field names are part
//! of the API.

mod command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::Capture;
use crate::admit::AdmittedRequest;
use crate::explain;
use crate::finding::Finding;
use crate::layer::Layer;
use crate::limits::Limits;
use crate::outcome::{Ending, Kernel, Limit, Outcome, Receipt, ServiceInfo, Warmth};
use crate::packages::{CacheResult, ProvidedPackages};
use crate::policy::Verdict;

pub use command::{CommandReport, CommandState, OutputCapture, OutputReport};

/// Status of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Exited with status 0.
    Succeeded,
    /// Exited with another status, or killed by a signal.
    Failed,
    /// Killed at its time limit.
    TimedOut,
    /// Ended because of another limit.
    LimitExceeded,
    /// Canceled by the caller.
    Cancelled,
    /// Refused by a policy.
    Refused,
}

/// The result object.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Id of the execution.
    pub id: String,
    /// Status.
    pub status: Status,
    /// Exit status; null if the program was killed.
    pub exit_code: Option<u8>,
    /// Signal that killed the program, e.g. `"SIGSEGV"`.
    pub signal: Option<String>,
    /// Limit that ended the program.
    pub limit: Option<Limit>,
    /// Head and tail of standard output.
    pub stdout: String,
    /// Head and tail of standard error.
    pub stderr: String,
    /// Whether bytes of standard output were dropped.
    pub stdout_truncated: bool,
    /// Whether bytes of standard error were dropped.
    pub stderr_truncated: bool,
    /// Standard output in base64, only if it was not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    /// Standard error in base64, only if it was not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// Value that `main` returned.
    pub result: ResultValue,
    /// Files from `./artifacts`.
    pub artifacts: Vec<ArtifactReport>,
    /// One-line error message that a person can act on.
    pub error: Option<String>,
    /// Findings from before and during the execution.
    pub findings: Vec<Finding>,
    /// Installed packages.
    pub dependencies: DependenciesReport,
    /// Wall-clock time.
    pub duration_ms: f64,
    /// Resources used.
    pub usage: UsageReport,
    /// Receipt of the enforced isolation; null if nothing ran.
    pub receipt: Option<ReceiptReport>,
    /// Echoed from the request.
    pub metadata: Map<String, Value>,
}

/// Value that `main` returned, if any.
#[derive(Debug, Clone, Serialize)]
pub struct ResultValue {
    /// Whether there is a value.
    pub present: bool,
    /// The value.
    pub value: Value,
}

/// An artifact.
#[derive(Debug, Clone, Serialize)]
pub struct ArtifactReport {
    /// File name.
    pub name: String,
    /// MIME type, by file extension.
    pub mime_type: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Content in base64.
    pub content_base64: String,
}

/// Packages installed for an execution.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DependenciesReport {
    /// Packages with versions.
    pub packages: Vec<String>,
    /// Whether they were cached: `hit`, `miss` or `none`.
    pub cache: CacheResult,
    /// Time spent installing.
    pub install_ms: u64,
}

impl From<ProvidedPackages> for DependenciesReport {
    fn from(prepared: ProvidedPackages) -> Self {
        let install_ms = prepared.install_time.as_millis() as u64;
        Self { packages: prepared.packages, cache: prepared.cache, install_ms }
    }
}

/// Resources used by an execution.
#[derive(Debug, Clone, Serialize)]
pub struct UsageReport {
    /// CPU time.
    pub cpu_ms: f64,
    /// Peak memory.
    pub peak_memory_bytes: u64,
    /// Peak number of processes; null if the host cannot measure it.
    pub processes_peak: Option<u64>,
}

/// Receipt of the isolation enforced on an execution or a sandbox.
#[derive(Debug, Clone, Serialize)]
pub struct ReceiptReport {
    /// Name of the provider.
    pub provider: &'static str,
    /// Kernel that the program ran on.
    pub kernel: Kernel,
    /// Enforced layers.
    pub isolation: Vec<Layer>,
    /// Whether a warm interpreter served the execution: `"pool"`, `"fork"` or `false`.
    pub warm: Warmth,
    /// Whether the execution was only simulated.
    pub simulated: bool,
    /// The failing provider that this one replaced as its configured fallback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instead_of: Option<&'static str>,
    /// The remote service that it ran on, if any; isolation is then the service's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceInfo>,
}

impl From<Receipt> for ReceiptReport {
    fn from(receipt: Receipt) -> Self {
        let Receipt { provider, kernel, isolation, warm, simulated, service } = receipt;
        Self { provider, kernel, isolation, warm, simulated, instead_of: None, service }
    }
}

impl Report {
    pub(crate) fn new(
        id: String,
        outcome: Outcome,
        limits: &Limits,
        stdout: &Capture,
        stderr: &Capture,
        metadata: Map<String, Value>,
    ) -> Self {
        let (stdout_text, stdout_base64) = text_and_base64(stdout.bytes());
        let (stderr_text, stderr_base64) = text_and_base64(stderr.bytes());
        let (status, exit_code, signal, limit) = ending_fields(outcome.ending);
        Report {
            id,
            status,
            exit_code,
            signal,
            limit,
            error: explain::error_line(outcome.ending, limits, &stderr_text),
            stdout: stdout_text,
            stderr: stderr_text,
            stdout_truncated: stdout.is_truncated(),
            stderr_truncated: stderr.is_truncated(),
            stdout_base64,
            stderr_base64,
            result: ResultValue {
                present: outcome.result.is_some(),
                value: outcome.result.unwrap_or(Value::Null),
            },
            artifacts: outcome.artifacts.into_iter().map(artifact_report).collect(),
            findings: outcome.findings,
            dependencies: DependenciesReport::default(),
            duration_ms: to_millis(outcome.duration),
            usage: UsageReport {
                cpu_ms: to_millis(outcome.usage.cpu),
                peak_memory_bytes: outcome.usage.peak_memory_bytes,
                processes_peak: outcome.usage.peak_processes,
            },
            receipt: Some(outcome.receipt.into()),
            metadata,
        }
    }

    /// Creates the report of an execution that a policy refused.
    pub(crate) fn refused(id: String, admitted: AdmittedRequest) -> Self {
        let AdmittedRequest { verdict: Verdict { findings, refusal }, metadata, .. } = admitted;
        Report {
            id,
            status: Status::Refused,
            exit_code: None,
            signal: None,
            limit: None,
            stdout: String::new(),
            stderr: String::new(),
            stdout_truncated: false,
            stderr_truncated: false,
            stdout_base64: None,
            stderr_base64: None,
            result: ResultValue { present: false, value: Value::Null },
            artifacts: Vec::new(),
            error: refusal,
            findings,
            dependencies: DependenciesReport::default(),
            duration_ms: 0.0,
            usage: UsageReport { cpu_ms: 0.0, peak_memory_bytes: 0, processes_peak: None },
            receipt: None,
            metadata,
        }
    }

    /// Prepends the findings of the policies.
    pub(crate) fn with_policy_findings(mut self, verdict: Verdict) -> Self {
        self.findings.splice(..0, verdict.findings);
        self
    }

    /// Returns the enforced layers.
    pub fn isolation(&self) -> &[Layer] {
        self.receipt.as_ref().map_or(&[], |receipt| &receipt.isolation)
    }

    /// Returns whether a warm interpreter served the execution.
    pub fn warmth(&self) -> Warmth {
        self.receipt.as_ref().map_or(Warmth::Cold, |receipt| receipt.warm)
    }

    /// Records the failing provider that was replaced by a fallback.
    pub(crate) fn with_fallback_for(mut self, other: Option<&'static str>) -> Self {
        if let Some(receipt) = &mut self.receipt {
            receipt.instead_of = other;
        }
        self
    }

    /// Adds the packages that were provided, and their findings.
    pub(crate) fn with_packages(mut self, prepared: ProvidedPackages) -> Self {
        self.findings.splice(0..0, prepared.findings.iter().cloned());
        self.dependencies = prepared.into();
        self
    }

    /// Returns the exit status of `belljar run`: the program's own, or the status that represents its ending.
    pub fn exit_status(&self) -> u8 {
        match (self.status, self.limit, self.exit_code, self.signal.as_deref()) {
            (Status::TimedOut, ..) => 124,
            (Status::Cancelled, ..) => 130,
            (Status::Refused, ..) => 126,
            (Status::LimitExceeded, Some(Limit::Memory), ..) => 137,
            (_, _, Some(code), _) => code,
            (_, _, None, Some(name)) => signal_exit_status(name),
            (_, _, None, None) => 137,
        }
    }
}

/// Returns the exit status for a program killed by the named signal: 128 plus its number.
pub fn signal_exit_status(name: &str) -> u8 {
    let signal = (1..=64).find(|signal| explain::signal_name(*signal) == name);
    signal.map_or(137, |signal| 128 + signal as u8)
}

type EndingFields = (Status, Option<u8>, Option<String>, Option<Limit>);

fn ending_fields(ending: Ending) -> EndingFields {
    match ending {
        Ending::Exited(0) => (Status::Succeeded, Some(0), None, None),
        Ending::Exited(code) => (Status::Failed, Some(code), None, None),
        Ending::Signalled(signal) => (Status::Failed, None, Some(explain::signal_name(signal)), None),
        Ending::TimedOut => (Status::TimedOut, None, None, None),
        Ending::LimitHit(limit, status) => (Status::LimitExceeded, status, None, Some(limit)),
        Ending::Cancelled => (Status::Cancelled, None, None, None),
    }
}

/// Decodes text, replacing invalid UTF-8 with U+FFFD and then also returning the bytes in base64.
pub fn text_and_base64(bytes: Vec<u8>) -> (String, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => {
            let bytes = error.into_bytes();
            (String::from_utf8_lossy(&bytes).into_owned(), Some(STANDARD.encode(&bytes)))
        }
    }
}

fn artifact_report(artifact: crate::outcome::Artifact) -> ArtifactReport {
    ArtifactReport {
        mime_type: mime_type(&artifact.name).unwrap_or("application/octet-stream"),
        name: artifact.name,
        size: artifact.content.len(),
        content_base64: STANDARD.encode(&artifact.content),
    }
}

/// Returns the MIME type of an artifact by extension; `None` for types that are not collected as artifacts.
pub fn mime_type(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    Some(match extension.to_ascii_lowercase().as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "pdf" => "application/pdf",
        "csv" => "text/csv",
        "tsv" => "text/tab-separated-values",
        "json" => "application/json",
        "html" => "text/html",
        "md" => "text/markdown",
        "txt" => "text/plain",
        "parquet" => "application/vnd.apache.parquet",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        _ => return None,
    })
}

/// Converts to milliseconds with microsecond precision, enough for the fastest execution.
fn to_millis(duration: std::time::Duration) -> f64 {
    duration.as_micros() as f64 / 1_000.0
}
