//! What a command of a sandbox looks like outside.

use std::time::Duration;

use serde::Serialize;

use super::{millis, text_and_base64};
use crate::Capture;
use crate::explain;
use crate::finding::Finding;
use crate::living::{Ending, ProcessInfo};
use crate::provider::Stream;

/// How a command stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandState {
    /// It runs.
    Running,
    /// It has ended.
    Ended,
}

/// A command of a sandbox.
#[derive(Debug, Clone, Serialize)]
pub struct CommandReport {
    /// Its number here.
    pub id: u64,
    /// Its number in the sandbox.
    pub pid: u32,
    /// What was started, cut to a bounded length.
    pub command: String,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// How it stands.
    pub state: CommandState,
    /// Null while it runs, and when it was signalled or killed.
    pub exit_code: Option<u8>,
    /// `"SIGSEGV"` and its kin.
    pub signal: Option<String>,
    /// Whether its time was over.
    pub timed_out: bool,
    /// How much it has written.
    pub output_bytes: u64,
    /// What it has written, where that was waited for.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub written: Option<WrittenReport>,
    /// How long it took, where that was waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<f64>,
    /// What policies say of it, where it was just started, and what it was kept from.
    pub findings: Vec<Finding>,
}

impl CommandReport {
    /// The same with what was seen of it, and how long that took.
    #[must_use]
    pub fn with(self, written: WrittenReport, duration: Duration) -> Self {
        Self { written: Some(written), duration_ms: Some(millis(duration)), ..self }
    }
}

impl From<ProcessInfo> for CommandReport {
    fn from(info: ProcessInfo) -> Self {
        let (exit_code, signal) = match info.ending {
            Some(Ending::Exited(code)) => (Some(code), None),
            Some(Ending::Signalled(signal)) => (None, Some(explain::signal_name(signal))),
            Some(Ending::TimedOut) | None => (None, None),
        };
        Self {
            id: info.id.0,
            pid: info.pid,
            command: info.command,
            terminal: info.terminal,
            state: if info.ending.is_some() { CommandState::Ended } else { CommandState::Running },
            exit_code,
            signal,
            timed_out: info.ending == Some(Ending::TimedOut),
            output_bytes: info.output_bytes,
            written: None,
            duration_ms: None,
            findings: Vec::new(),
        }
    }
}

/// Both streams, each bounded.
#[derive(Debug)]
pub struct Written {
    stdout: Capture,
    stderr: Capture,
}

/// Both streams as text, head and tail.
#[derive(Debug, Clone, Serialize)]
pub struct WrittenReport {
    stdout: String,
    stderr: String,
    stdout_truncated: bool,
    stderr_truncated: bool,
    /// Only where the bytes were not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    /// Only where the bytes were not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
}

impl Written {
    /// Keeps at most `bound` bytes of each.
    pub fn new(bound: u64) -> Self {
        Self { stdout: Capture::new(bound), stderr: Capture::new(bound) }
    }

    /// Takes the next bytes of one.
    pub fn push(&mut self, stream: Stream, bytes: &[u8]) {
        match stream {
            Stream::Stdout => self.stdout.push(bytes),
            Stream::Stderr => self.stderr.push(bytes),
        };
    }

    /// As it is shown.
    pub fn report(&self) -> WrittenReport {
        let (stdout, stdout_base64) = text_and_base64(self.stdout.bytes());
        let (stderr, stderr_base64) = text_and_base64(self.stderr.bytes());
        let (stdout_truncated, stderr_truncated) = (self.stdout.truncated(), self.stderr.truncated());
        WrittenReport { stdout, stderr, stdout_truncated, stderr_truncated, stdout_base64, stderr_base64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::living::ProcessId;
    use serde_json::json;

    #[test]
    fn a_command_tells_how_it_stands() {
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
        assert_eq!(fields(Ending::Exited(0)), [json!("ended"), json!(0), json!(null), json!(false)]);
        assert_eq!(
            fields(Ending::Signalled(9)),
            [json!("ended"), json!(null), json!("SIGKILL"), json!(false)]
        );
        assert_eq!(fields(Ending::TimedOut), [json!("ended"), json!(null), json!(null), json!(true)]);
        let mut written = Written::new(4);
        written.push(Stream::Stdout, b"\xff");
        written.push(Stream::Stderr, b"too long");
        let whole = CommandReport::from(info(None)).with(written.report(), Duration::from_millis(2));
        let whole = serde_json::to_value(whole).unwrap();
        assert_eq!((&whole["stdout"], &whole["stdout_base64"]), (&json!("\u{fffd}"), &json!("/w==")));
        assert_eq!((&whole["stderr_truncated"], &whole["duration_ms"]), (&json!(true), &json!(2.0)));
    }
}
