//! The result object: the same from the command line, HTTP, MCP and the Python package. Its names are fixed.

mod command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::Capture;
use crate::admit::Admitted;
use crate::explain;
use crate::finding::Finding;
use crate::layer::Layer;
use crate::limits::Limits;
use crate::outcome::{Ending, Kernel, Limit, Outcome, Receipt, Service, Warmth};
use crate::packages::{Cache, Prepared};
use crate::policy::Verdict;

pub use command::{CommandReport, CommandState, Written, WrittenReport};

/// How a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Exit status 0.
    Succeeded,
    /// Any other exit, or a signal.
    Failed,
    /// Its time was over.
    TimedOut,
    /// It ended because of a limit.
    LimitExceeded,
    /// Somebody asked for it.
    Cancelled,
    /// A policy did not let it run.
    Refused,
}

/// The result object.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Name of this run.
    pub id: String,
    /// How it stands.
    pub status: Status,
    /// Null when signalled or killed.
    pub exit_code: Option<u8>,
    /// `"SIGSEGV"` and its kin.
    pub signal: Option<String>,
    /// The limit that ended it.
    pub limit: Option<Limit>,
    /// Standard output, head and tail.
    pub stdout: String,
    /// Standard error, head and tail.
    pub stderr: String,
    /// Whether bytes were left out.
    pub stdout_truncated: bool,
    /// Whether bytes were left out.
    pub stderr_truncated: bool,
    /// Only where the bytes were not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    /// Only where the bytes were not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// What `main` returned.
    pub result: ResultValue,
    /// Files from `./artifacts`.
    pub artifacts: Vec<ArtifactReport>,
    /// One line a person can act on.
    pub error: Option<String>,
    /// What was noticed before and during the run.
    pub findings: Vec<Finding>,
    /// What was installed.
    pub dependencies: DependenciesReport,
    /// Wall-clock time.
    pub duration_ms: f64,
    /// What it used.
    pub usage: UsageReport,
    /// What enforced it; nothing where nothing ran.
    pub receipt: Option<ReceiptReport>,
    /// Echoed from the request.
    pub metadata: Map<String, Value>,
}

/// What `main` returned, if it did.
#[derive(Debug, Clone, Serialize)]
pub struct ResultValue {
    /// Whether there is a value.
    pub present: bool,
    /// The value.
    pub value: Value,
}

/// One artifact.
#[derive(Debug, Clone, Serialize)]
pub struct ArtifactReport {
    /// File name.
    pub name: String,
    /// By its extension.
    pub mime_type: &'static str,
    /// Bytes.
    pub size: usize,
    /// Content.
    pub content_base64: String,
}

/// What was installed for the run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DependenciesReport {
    /// Packages.
    pub packages: Vec<String>,
    /// Where they came from: `hit`, `miss` or `none`.
    pub cache: Cache,
    /// How long it took.
    pub install_ms: u64,
}

impl From<Prepared> for DependenciesReport {
    fn from(prepared: Prepared) -> Self {
        let install_ms = prepared.install.as_millis() as u64;
        Self { packages: prepared.packages, cache: prepared.cache, install_ms }
    }
}

/// What a run used.
#[derive(Debug, Clone, Serialize)]
pub struct UsageReport {
    /// Processor time.
    pub cpu_ms: f64,
    /// The most memory at one time.
    pub peak_memory_bytes: u64,
    /// The most processes at one time; null where the host cannot tell.
    pub processes_peak: Option<u64>,
}

/// What enforced a run, or a sandbox.
#[derive(Debug, Clone, Serialize)]
pub struct ReceiptReport {
    /// Name of the provider.
    pub provider: &'static str,
    /// Kernel boundary.
    pub kernel: Kernel,
    /// Layers in force.
    pub isolation: Vec<Layer>,
    /// Whether a warm interpreter served it: `"pool"`, `"fork"` or `false`.
    pub warm: Warmth,
    /// Whether nothing really ran.
    pub simulated: bool,
    /// The provider that should have served it, where that one was failing and an administrator named this one instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instead_of: Option<&'static str>,
    /// Whose machine it ran on, where that was not ours: isolation is theirs then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
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
            stdout_truncated: stdout.truncated(),
            stderr_truncated: stderr.truncated(),
            stdout_base64,
            stderr_base64,
            result: ResultValue {
                present: outcome.result.is_some(),
                value: outcome.result.unwrap_or(Value::Null),
            },
            artifacts: outcome.artifacts.into_iter().map(artifact).collect(),
            findings: outcome.findings,
            dependencies: DependenciesReport::default(),
            duration_ms: millis(outcome.duration),
            usage: UsageReport {
                cpu_ms: millis(outcome.usage.cpu),
                peak_memory_bytes: outcome.usage.peak_memory_bytes,
                processes_peak: outcome.usage.peak_processes,
            },
            receipt: Some(outcome.receipt.into()),
            metadata,
        }
    }

    /// Of one that a policy did not let run.
    pub(crate) fn refused(id: String, admitted: Admitted) -> Self {
        let Admitted { verdict: Verdict { findings, refusal }, metadata, .. } = admitted;
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

    /// The same, with what was said before it ran in front of what was noticed while it did.
    pub(crate) fn after(mut self, verdict: Verdict) -> Self {
        self.findings.splice(..0, verdict.findings);
        self
    }

    /// Layers that were in force.
    pub fn isolation(&self) -> &[Layer] {
        self.receipt.as_ref().map_or(&[], |receipt| &receipt.isolation)
    }

    /// Whether an interpreter was waiting for it.
    pub fn warmth(&self) -> Warmth {
        self.receipt.as_ref().map_or(Warmth::Cold, |receipt| receipt.warm)
    }

    /// With who should have served it.
    pub(crate) fn instead_of(mut self, other: Option<&'static str>) -> Self {
        if let Some(receipt) = &mut self.receipt {
            receipt.instead_of = other;
        }
        self
    }

    /// With what was made available before it ran.
    pub(crate) fn with_packages(mut self, prepared: Prepared) -> Self {
        self.findings.splice(0..0, prepared.findings.iter().cloned());
        self.dependencies = prepared.into();
        self
    }

    /// The exit status of `belljar run`: the program's own, or what stands for its ending.
    pub fn exit_status(&self) -> u8 {
        match (self.status, self.limit, self.exit_code, self.signal.as_deref()) {
            (Status::TimedOut, ..) => 124,
            (Status::Cancelled, ..) => 130,
            (Status::Refused, ..) => 126,
            (Status::LimitExceeded, Some(Limit::Memory), ..) => 137,
            (_, _, Some(code), _) => code,
            (_, _, None, Some(name)) => signalled_status(name),
            (_, _, None, None) => 137,
        }
    }
}

/// What stands for the end by a signal of this name.
pub fn signalled_status(name: &str) -> u8 {
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

/// Text with U+FFFD for what is not UTF-8, and then also the bytes themselves.
pub fn text_and_base64(bytes: Vec<u8>) -> (String, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => {
            let bytes = error.into_bytes();
            (String::from_utf8_lossy(&bytes).into_owned(), Some(STANDARD.encode(&bytes)))
        }
    }
}

fn artifact(artifact: crate::outcome::Artifact) -> ArtifactReport {
    ArtifactReport {
        mime_type: mime_type(&artifact.name).unwrap_or("application/octet-stream"),
        name: artifact.name,
        size: artifact.content.len(),
        content_base64: STANDARD.encode(&artifact.content),
    }
}

/// The types that leave a sandbox as artifacts; anything else stays inside.
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

/// Milliseconds with microseconds behind the point: enough for the fastest run, and readable.
fn millis(duration: std::time::Duration) -> f64 {
    duration.as_micros() as f64 / 1_000.0
}
