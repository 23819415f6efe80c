//! Runs code in warm interpreters.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Answer, belljar};

/// A batch whose lines are sent one at a time.
pub(crate) struct Conversation {
    child: Child,
    lines: Option<ChildStdin>,
    results: BufReader<ChildStdout>,
    _config: tempfile::NamedTempFile,
}

impl Conversation {
    /// Starts `belljar run ARGUMENTS --batch -` with these `[warm]` settings.
    pub(crate) fn start<I: AsRef<std::ffi::OsStr>>(
        settings: &str,
        fault: &str,
        arguments: impl IntoIterator<Item = I>,
    ) -> Self {
        let mut command = belljar();
        if !fault.is_empty() {
            command.env("BELLJAR_FAULT", fault);
        }
        let arguments: Vec<_> = arguments.into_iter().collect();
        Self::by(command, settings, &arguments)
    }

    /// Starts the batch with a command that wraps the binary.
    pub(crate) fn by(
        mut command: Command,
        settings: &str,
        arguments: &[impl AsRef<std::ffi::OsStr>],
    ) -> Self {
        let mut config = tempfile::NamedTempFile::new().expect("a file");
        writeln!(config, "[warm]\n{settings}").expect("a file of the test's own");
        command.arg("--config").arg(config.path()).arg("run").args(arguments);
        command.args(["--batch", "-", "--jobs", "1", "--quiet"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("the binary starts");
        let lines = child.stdin.take();
        let results = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, lines, results, _config: config }
    }

    /// Sends a line and returns its result.
    pub(crate) fn ask(&mut self, line: &Value) -> Value {
        let lines = self.lines.as_mut().expect("it is open until the end");
        writeln!(lines, "{line}").expect("the batch reads the line");
        let mut result = String::new();
        self.results.read_line(&mut result).expect("the batch prints a result");
        serde_json::from_str(&result).unwrap_or_else(|_| panic!("a result is not JSON: {result:?}"))
    }

    /// Runs trivial code with the same limits until one run is served this way.
    pub(crate) fn until(&mut self, warm: &str) {
        for _ in 0..300 {
            if self.ask(&json!({"code": "0"}))["receipt"]["warm"] == warm {
                // Give the pool time to refill.
                std::thread::sleep(Duration::from_millis(60));
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("no run was served by {warm}");
    }

    /// Sends a line until it is served this way. A busy machine may have no warm child ready, and then it is
    /// sent again.
    pub(crate) fn ask_warm(&mut self, warm: &str, line: &Value) -> Value {
        for _ in 0..20 {
            self.until(warm);
            let result = self.ask(line);
            if result["receipt"]["warm"] == warm {
                return result;
            }
        }
        panic!("the line was never served by {warm}: {line}");
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.lines = None;
        let _waited = self.child.wait();
    }
}

/// Runs `belljar run --json` with these arguments, served by `pool` or `fork`; `None` if that is not
/// possible.
pub(crate) fn run_warm<I: AsRef<std::ffi::OsStr>>(
    warm: &str,
    fault: &str,
    arguments: impl IntoIterator<Item = I>,
) -> Answer {
    let mut conversation = Conversation::start(&format!("mode = \"{warm}\""), fault, arguments);
    let json = conversation.ask_warm(warm, &json!({}));
    Answer { code: None, json, stderr: String::new() }
}
