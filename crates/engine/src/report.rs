//! Reports: results as the API shows them, made from outcomes and verdicts.

mod command;
mod media_type;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
pub use belljar_model::command::{CommandReport, CommandState, EndedCommand, OutputReport};
pub use belljar_model::report::{ArtifactReport, DependenciesReport, Report, ResultValue, Status};
use serde_json::{Map, Value};

use crate::Capture;
use crate::admit::AdmittedRequest;
use crate::explain;
use crate::limits::Limits;
use crate::outcome::{Ending, Limit, Outcome, ReturnValue, to_millis};
use crate::packages::ProvidedPackages;
use crate::policy::Verdict;

pub use command::{OutputCapture, command_report, with_output};
use media_type::media_type;

impl From<ProvidedPackages> for DependenciesReport {
    fn from(prepared: ProvidedPackages) -> Self {
        let install_ms = prepared.install_time.as_millis() as u64;
        Self { packages: prepared.packages, cache: prepared.cache, install_ms }
    }
}

/// Error line of an execution that was only simulated, whatever its status.
const SIMULATED: &str = "nothing ran: the provider only simulates; use another one to run code";

/// Creates the report of an execution from its outcome.
pub(crate) fn from_outcome(
    id: String,
    outcome: Outcome,
    limits: &Limits,
    stdout: &Capture,
    stderr: &Capture,
    metadata: Map<String, Value>,
) -> Report {
    let (stdout_text, stdout_base64) = text_and_base64(stdout.bytes());
    let (stderr_text, stderr_base64) = text_and_base64(stderr.bytes());
    let (mut status, exit_code, signal, limit) = ending_fields(outcome.ending);
    let mut error = match outcome.receipt.simulated {
        true => Some(SIMULATED.to_owned()),
        false => explain::error_line(outcome.ending, limits, &stderr_text),
    };
    let result = match outcome.result {
        ReturnValue::Absent => ResultValue::default(),
        ReturnValue::Present(value) => ResultValue { present: true, value },
        ReturnValue::Invalid(why) => {
            if status == Status::Succeeded {
                (status, error) = (Status::Failed, Some(why));
            }
            ResultValue::default()
        }
    };
    Report {
        index: None,
        id,
        status,
        exit_code,
        signal,
        limit,
        error,
        stdout: stdout_text,
        stderr: stderr_text,
        stdout_truncated: stdout.is_truncated(),
        stderr_truncated: stderr.is_truncated(),
        stdout_base64,
        stderr_base64,
        result,
        artifacts: outcome.artifacts.into_iter().map(artifact_report).collect(),
        findings: outcome.findings,
        dependencies: DependenciesReport::default(),
        duration_ms: to_millis(outcome.duration),
        usage: outcome.usage,
        receipt: Some(outcome.receipt),
        metadata,
    }
}

/// Creates the report of an execution that a policy refused.
pub(crate) fn refused(id: String, admitted: AdmittedRequest) -> Report {
    let AdmittedRequest { verdict: Verdict { findings, refusal }, metadata, .. } = admitted;
    Report { findings, ..Report::blank(id, Status::Refused, refusal, metadata) }
}

/// Adds the packages that were provided, and their findings.
pub(crate) fn with_packages(mut report: Report, prepared: ProvidedPackages) -> Report {
    report.findings.splice(0..0, prepared.findings.iter().cloned());
    report.dependencies = prepared.into();
    report
}

/// Prepends the findings of the policies.
pub(crate) fn with_policy_findings(mut report: Report, verdict: Verdict) -> Report {
    report.findings.splice(..0, verdict.findings);
    report
}

/// Returns the exit status of `belljar run`: the program's own, or the status that represents its ending.
pub fn exit_status(report: &Report) -> u8 {
    match (report.status, report.limit, report.exit_code, report.signal.as_deref()) {
        (Status::TimedOut, ..) => 124,
        (Status::Cancelled, ..) => 130,
        (Status::Refused, ..) => 126,
        (Status::LimitExceeded, Some(Limit::Memory), ..) => 137,
        // The program exited with status 0, but its result was invalid.
        (Status::Failed, _, Some(0), _) => 1,
        (_, _, Some(code), _) => code,
        (_, _, None, Some(name)) => signal_exit_status(name),
        (_, _, None, None) => 137,
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
        mime_type: media_type(&artifact.name, &artifact.content),
        name: artifact.name,
        size: artifact.content.len(),
        content: Some(artifact.content),
        url: None,
    }
}
