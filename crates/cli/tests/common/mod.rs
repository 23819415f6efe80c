//! Helpers of the tests over the real binary: running it, parsing its output, and inspecting the host.
#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod host;
pub(crate) mod own_world;
pub(crate) mod server;
pub(crate) mod warm;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Exit status; `None` if a signal ended the process.
    pub(crate) code: Option<i32>,
    /// The JSON object on standard output.
    pub(crate) json: Value,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Answer {
    pub(crate) fn text(&self, field: &str) -> &str {
        self.json[field].as_str().unwrap_or_default()
    }

    pub(crate) fn status(&self) -> &str {
        self.text("status")
    }

    /// Returns the lines that the program printed.
    pub(crate) fn lines(&self) -> Vec<&str> {
        self.text("stdout").lines().collect()
    }

    pub(crate) fn error_code(&self) -> &str {
        self.json["error"]["code"].as_str().unwrap_or_default()
    }

    pub(crate) fn error_message(&self) -> &str {
        self.json["error"]["message"].as_str().unwrap_or_default()
    }

    /// Returns whether the receipt lists a layer.
    pub(crate) fn has_layer(&self, layer: &str) -> bool {
        let layers = self.json["receipt"]["isolation"].as_array();
        layers.is_some_and(|layers| layers.iter().any(|found| found == layer))
    }
}

/// Returns a command for the binary, without the user's configuration.
pub(crate) fn belljar() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.env("XDG_CONFIG_HOME", "/nonexistent").stdin(Stdio::null());
    for name in ["BELLJAR_CONFIG", "BELLJAR_PROFILE", "BELLJAR_FAULT", "CODE_EXECUTION_TIMEOUT"] {
        command.env_remove(name);
    }
    command.env_remove("CODE_EXECUTION_MEMORY_MB").env_remove("CODE_EXECUTION_CPU_CORES");
    command
}

/// Runs `belljar run --json` with these arguments.
pub(crate) fn run<I: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = I>) -> Answer {
    finish(belljar().args(["run", "--json"]).args(arguments))
}

/// Runs with an injected fault, which only a binary built with the feature `faults` supports.
pub(crate) fn run_with_fault(fault: &str, arguments: &[&str]) -> Answer {
    let mut command = belljar();
    if !fault.is_empty() {
        command.env("BELLJAR_FAULT", fault);
    }
    finish(command.args(["run", "--json"]).args(arguments))
}

pub(crate) fn finish(command: &mut Command) -> Answer {
    let output: Output = command.output().expect("the binary starts");
    let stdout = String::from_utf8(output.stdout).expect("the answer is text");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let one_line = stdout.ends_with('\n') && stdout.matches('\n').count() == 1;
    assert!(one_line, "expected one line of JSON, got: {stdout:?} {stderr:?}");
    let json = serde_json::from_str(&stdout).expect("the answer is JSON");
    Answer { code: output.status.code(), json, stderr }
}

/// A run with live output; killed on drop.
#[derive(Debug)]
pub(crate) struct Live(pub(crate) Child);

impl Live {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = belljar();
        command.args(["run", "--quiet"]).args(arguments).stdout(Stdio::piped()).stderr(Stdio::null());
        Self(command.spawn().expect("the binary starts"))
    }

    /// Returns the first line that the program prints.
    pub(crate) fn first_line(&mut self) -> String {
        use std::io::{BufRead, BufReader};
        let mut line = String::new();
        let stdout = self.0.stdout.as_mut().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("it prints a line");
        line.trim_end().to_owned()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // A process that has already exited is fine.
        let _killed = self.0.kill();
        let _waited = self.0.wait();
    }
}

/// Returns the path of a file or folder beside the tests.
pub(crate) fn beside(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path)
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns why sandboxes do not start on this machine, if they do not.
pub(crate) fn unusable() -> Option<String> {
    let answer = run(["--", "true"]);
    (answer.status() != "succeeded").then(|| format!("no sandbox starts here: {}", answer.json))
}
