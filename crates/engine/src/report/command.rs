//! Commands in a sandbox as the API shows them.

use std::time::Duration;

use belljar_model::command::{CommandReport, CommandState, OutputReport};

use super::text_and_base64;
use crate::Capture;
use crate::explain;
use crate::outcome::to_millis;
use crate::provider::Stream;
use crate::sandbox_handle::{CommandEnding, ProcessInfo};

/// Adds the output and the duration to a command.
#[must_use]
pub fn with_output(command: CommandReport, written: OutputReport, duration: Duration) -> CommandReport {
    CommandReport { output: Some(written), duration_ms: Some(to_millis(duration)), ..command }
}

/// Returns a command as the API shows it, without output and findings.
pub fn command_report(info: ProcessInfo) -> CommandReport {
    let (exit_code, signal) = match info.ending {
        Some(CommandEnding::Exited(code)) => (Some(code), None),
        Some(CommandEnding::Signalled(signal)) => (None, Some(explain::signal_name(signal))),
        Some(CommandEnding::TimedOut) | None => (None, None),
    };
    CommandReport {
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

/// A bounded capture of both output streams.
#[derive(Debug)]
pub struct OutputCapture {
    stdout: Capture,
    stderr: Capture,
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
        let shown = |ending| serde_json::to_value(command_report(info(ending))).unwrap();
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
        let whole = with_output(command_report(info(None)), written.report(), Duration::from_millis(2));
        let whole = serde_json::to_value(whole).unwrap();
        assert_eq!((&whole["stdout"], &whole["stdout_base64"]), (&json!("\u{fffd}"), &json!("/w==")));
        assert_eq!((&whole["stderr_truncated"], &whole["duration_ms"]), (&json!(true), &json!(2.0)));
    }
}
