//! Commands in sandboxes.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

/// A command to start: `command` or `shell`.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewCommand {
    /// Program, looked up in `PATH`, and arguments.
    command: Option<Vec<String>>,
    /// Command line for `/bin/sh -c`, instead of `command`.
    shell: Option<String>,
    /// Environment variables, in addition to the sandbox's.
    env: Option<BTreeMap<String, String>>,
    /// Working directory: absolute, or relative to `/workspace`.
    workdir: Option<String>,
    /// Standard input; at most 64 KB for a background command.
    stdin: Option<String>,
    /// Whether standard input stays open for later writes.
    stdin_open: Option<bool>,
    /// Terminal to run in; stdout and stderr are then one stream.
    terminal: Option<TerminalSize>,
    /// Timeout in milliseconds; by default `limits.timeout_ms` of the sandbox, and none for a background
    /// command.
    #[schema(minimum = 1)]
    timeout_ms: Option<i64>,
    /// Bytes of output kept for later reading; default 1 MB.
    #[schema(minimum = 65536, maximum = 67108864)]
    keep_bytes: Option<i64>,
    /// Whether to return at once. The command then runs until it or the sandbox ends.
    background: Option<bool>,
}

/// Size of a terminal.
#[derive(Serialize, ToSchema)]
pub(crate) struct TerminalSize {
    /// Number of rows.
    #[schema(minimum = 1)]
    rows: u16,
    /// Number of columns.
    #[schema(minimum = 1)]
    columns: u16,
}

/// State of a command.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CommandState {
    Running,
    Ended,
}

/// A command in a sandbox.
#[derive(Serialize, ToSchema)]
pub(crate) struct Command {
    /// Number of the command in its sandbox.
    id: u64,
    /// Process id inside the sandbox.
    pid: u32,
    /// Command line, shortened if it is long.
    command: String,
    /// Whether it runs in a terminal.
    terminal: bool,
    /// State of the command.
    state: CommandState,
    /// Exit code; null while it runs, or if it was killed by a signal.
    #[schema(required)]
    exit_code: Option<u8>,
    /// Name of the signal that killed it, such as `SIGSEGV`.
    #[schema(required)]
    signal: Option<String>,
    /// Whether it was killed because of its timeout.
    timed_out: bool,
    /// Bytes of output written so far.
    output_bytes: u64,
    /// Findings of the policy, in the response to starting it, and denials as in a result: system calls
    /// denied to its own processes, and, if nothing else ran at the same time, limits and hosts. Empty in
    /// lists.
    findings: Vec<super::Finding>,
}

/// A command that has ended, with its output.
#[derive(Serialize, ToSchema)]
pub(crate) struct EndedCommand {
    #[serde(flatten)]
    command: Command,
    #[serde(flatten)]
    written: Written,
    /// Wall-clock time in milliseconds.
    duration_ms: f64,
}

/// Output of a command: `limits.output_bytes` of each stream; if more was written, its beginning and end.
#[derive(Serialize, ToSchema)]
pub(crate) struct Written {
    /// Standard output.
    stdout: String,
    /// Standard error.
    stderr: String,
    /// Whether a part of `stdout` is left out.
    stdout_truncated: bool,
    /// Whether a part of `stderr` is left out.
    stderr_truncated: bool,
    /// Standard output in base64; only present if it is not UTF-8.
    stdout_base64: Option<String>,
    /// Standard error in base64; only present if it is not UTF-8.
    stderr_base64: Option<String>,
}

/// A contiguous part of a command's output.
#[derive(Serialize, ToSchema)]
pub(crate) struct CommandOutput {
    /// Offset of the first byte.
    from: u64,
    /// Offset to continue reading from.
    next: u64,
    /// Number of requested bytes that are no longer stored.
    lost_bytes: u64,
    #[serde(flatten)]
    written: Written,
    /// The command.
    command: Command,
}

/// Commands of a sandbox.
#[derive(Serialize, ToSchema)]
pub(crate) struct CommandList {
    /// Commands, oldest first.
    commands: Vec<Command>,
}

/// A signal to send.
#[derive(Serialize, ToSchema)]
pub(crate) struct CommandSignal {
    /// Name or number of the signal: `SIGINT`, `INT` or 2.
    #[schema(value_type = String, example = "SIGINT")]
    signal: String,
}
