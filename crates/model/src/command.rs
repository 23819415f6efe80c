//! Commands in sandboxes: the request, and the command as shown.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::finding::Finding;

/// A command to start: `command` or `shell`. Unknown fields are refused by name.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "NewCommand")]
pub struct CommandRequest {
    /// Program, looked up in `PATH`, and arguments.
    pub command: Option<Vec<String>>,
    /// Command line for `/bin/sh -c`, instead of `command`.
    pub shell: Option<String>,
    /// Environment variables, in addition to the sandbox's.
    pub env: BTreeMap<String, String>,
    /// Working directory: absolute, or relative to `/workspace`.
    pub workdir: Option<String>,
    /// Standard input; at most 64 KB for a background command.
    pub stdin: Option<String>,
    /// Whether standard input stays open for later writes.
    pub stdin_open: bool,
    /// Terminal to run in; stdout and stderr are then one stream.
    pub terminal: Option<TerminalSizeSpec>,
    /// Timeout in milliseconds; by default `limits.timeout_ms` of the sandbox, and none for a background
    /// command.
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<i64>,
    /// Bytes of output kept for later reading; default 1 MB.
    #[schemars(range(min = 65536, max = 67108864))]
    pub keep_bytes: Option<i64>,
    /// Whether to return at once. The command then runs until it or the sandbox ends.
    pub background: bool,
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TerminalSize")]
pub struct TerminalSizeSpec {
    /// Number of rows.
    #[schemars(range(min = 1))]
    pub rows: u16,
    /// Number of columns.
    #[schemars(range(min = 1))]
    pub columns: u16,
}

/// A signal by name, with or without `SIG`, or by number.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Signal")]
pub enum SignalSpec {
    /// A name, e.g. `SIGINT` or `INT`.
    Name(String),
    /// A number, e.g. 2.
    Number(i64),
}

/// State of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommandState {
    /// The command is running.
    Running,
    /// The command has ended.
    Ended,
}

/// A command in a sandbox.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Command")]
pub struct CommandReport {
    /// Number of the command in its sandbox.
    pub id: u64,
    /// Process id inside the sandbox.
    pub pid: u32,
    /// Command line, shortened if it is long.
    pub command: String,
    /// Whether it runs in a terminal.
    pub terminal: bool,
    /// State of the command.
    pub state: CommandState,
    /// Exit code; null while it runs, or if it was killed by a signal.
    pub exit_code: Option<u8>,
    /// Name of the signal that killed it, such as `SIGSEGV`.
    pub signal: Option<String>,
    /// Whether it was killed because of its timeout.
    pub timed_out: bool,
    /// Bytes of output written so far.
    pub output_bytes: u64,
    /// Output, if the caller waited for the command.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub output: Option<OutputReport>,
    /// Wall-clock time in milliseconds, if the caller waited for the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub duration_ms: Option<f64>,
    /// Findings of the policy, in the response to starting it, and denials as in a result: system calls
    /// denied to its own processes, and, if nothing else ran at the same time, limits and hosts. Empty in
    /// lists.
    pub findings: Vec<Finding>,
}

/// A command that has ended, with its output.
// The schema of a `CommandReport` whose caller waited.
#[derive(Debug, JsonSchema)]
pub struct EndedCommand {
    /// The command.
    #[schemars(flatten)]
    pub command: CommandReport,
    /// Its output.
    #[schemars(flatten)]
    pub output: OutputReport,
    /// Wall-clock time in milliseconds.
    pub duration_ms: f64,
}

/// Output of a command: `limits.output_bytes` of each stream; if more was written, its beginning and end.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Written")]
pub struct OutputReport {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
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
}
