//! The API representation of a command in a sandbox.

use std::time::Duration;

use serde::Serialize;

use super::{text_and_base64, to_millis};
use crate::Capture;
use crate::explain;
use crate::finding::Finding;
use crate::provider::Stream;
use crate::sandbox_handle::{CommandEnding, ProcessInfo};

/// State of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandState {
    /// The command is running.
    Running,
    /// The command has ended.
    Ended,
}

/// A command in a sandbox.
#[derive(Debug, Clone, Serialize)]
pub struct CommandReport {
    /// Id of the command in the API.
    pub id: u64,
    /// Process id in the sandbox's PID namespace.
    pub pid: u32,
    /// The command, truncated to a bounded length.
    pub command: String,
    /// Whether the command has a terminal.
    pub terminal: bool,
    /// State.
    pub state: CommandState,
    /// Exit status; null while the command runs, or if it was killed.
    pub exit_code: Option<u8>,
    /// Signal that killed the command, e.g. `"SIGSEGV"`.
    pub signal: Option<String>,
    /// Whether the command was killed by its timeout.
    pub timed_out: bool,
    /// Bytes of output written so far.
    pub output_bytes: u64,
    /// Output, if the caller waited for the command.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputReport>,
    /// Duration, if the caller waited for the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<f64>,
    /// Findings of the policies, if the command was just started, and findings about denied actions.
    pub findings: Vec<Finding>,
}

impl CommandReport {
    /// Adds the output and the duration.
    #[must_use]
    pub fn with_output(self, written: OutputReport, duration: Duration) -> Self {
        Self { output: Some(written), duration_ms: Some(to_millis(duration)), ..self }
    }
}

impl From<ProcessInfo> for CommandReport {
    fn from(info: ProcessInfo) -> Self {
        let (exit_code, signal) = match info.ending {
            Some(CommandEnding::Exited(code)) => (Some(code), None),
            Some(CommandEnding::Signalled(signal)) => (None, Some(explain::signal_name(signal))),
            Some(CommandEnding::TimedOut) | None => (None, None),
        };
        Self {
            id: info.id.0,
            pid: info.pid,
            command: info.command,
            terminal: info.terminal,
            state: if info.ending.is_some() { CommandState::Ended } else { CommandState::Running },
            exit_code,
            signal,
            timed_out: info.ending == Some(CommandEnding::TimedOut),
            output_bytes: info.output_bytes,
            output: None,
            duration_ms: None,
            findings: Vec::new(),
        }
    }
}

/// A bounded capture of both output streams.
#[derive(Debug)]
pub struct OutputCapture {
    stdout: Capture,
    stderr: Capture,
}

/// Head and tail of both output streams, as text.
#[derive(Debug, Clone, Serialize)]
pub struct OutputReport {
    stdout: String,
    stderr: String,
    stdout_truncated: bool,
    stderr_truncated: bool,
    /// Only if standard output was not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    /// Only if standard error was not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
}

impl OutputCapture {
    /// Creates a capture that keeps at most `bound` bytes of each stream.
    pub fn new(bound: u64) -> Self {
        Self { stdout: Capture::new(bound), stderr: Capture::new(bound) }
    }

    /// Appends bytes of a stream.
    pub fn push(&mut self, stream: Stream, bytes: &[u8]) {
        match stream {
            Stream::Stdout => self.stdout.push(bytes),
            Stream::Stderr => self.stderr.push(bytes),
        };
    }

    /// Returns the captured output as text.
    pub fn report(&self) -> OutputReport {
        let (stdout, stdout_base64) = text_and_base64(self.stdout.bytes());
        let (stderr, stderr_base64) = text_and_base64(self.stderr.bytes());
        let (stdout_truncated, stderr_truncated) = (self.stdout.is_truncated(), self.stderr.is_truncated());
        OutputReport { stdout, stderr, stdout_truncated, stderr_truncated, stdout_base64, stderr_base64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox_handle::ProcessId;
    use serde_json::json;

    #[test]
    fn command_reports_serialize() {
        let info = |ending| ProcessInfo {
            id: ProcessId(3),
            pid: 7,
            command: "sleep 1".to_owned(),
            terminal: false,
            ending,
            output_bytes: 5,
        };
        let shown = |ending| serde_json::to_value(CommandReport::from(info(ending))).unwrap();
        let running = json!({"id": 3, "pid": 7, "command": "sleep 1", "terminal": false, "state": "running",
            "exit_code": null, "signal": null, "timed_out": false, "output_bytes": 5, "findings": []});
        assert_eq!(shown(None), running);
        let fields = |ending| {
            let shown = shown(Some(ending));
            ["state", "exit_code", "signal", "timed_out"].map(|name| shown[name].clone())
        };
        assert_eq!(fields(CommandEnding::Exited(0)), [json!("ended"), json!(0), json!(null), json!(false)]);
        assert_eq!(
            fields(CommandEnding::Signalled(9)),
            [json!("ended"), json!(null), json!("SIGKILL"), json!(false)]
        );
        assert_eq!(fields(CommandEnding::TimedOut), [json!("ended"), json!(null), json!(null), json!(true)]);
        let mut written = OutputCapture::new(4);
        written.push(Stream::Stdout, b"\xff");
        written.push(Stream::Stderr, b"too long");
        let whole = CommandReport::from(info(None)).with_output(written.report(), Duration::from_millis(2));
        let whole = serde_json::to_value(whole).unwrap();
        assert_eq!((&whole["stdout"], &whole["stdout_base64"]), (&json!("\u{fffd}"), &json!("/w==")));
        assert_eq!((&whole["stderr_truncated"], &whole["duration_ms"]), (&json!(true), &json!(2.0)));
    }
}
