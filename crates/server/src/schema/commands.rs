//! Commands of sandboxes.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

/// A command to start: `command` or `shell`.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewCommand {
    /// A program, looked up in the `PATH`, and its arguments.
    command: Option<Vec<String>>,
    /// A line for `/bin/sh -c`, instead.
    shell: Option<String>,
    /// Environment, beside the sandbox's.
    env: Option<BTreeMap<String, String>>,
    /// Where it starts: absolute, or relative to `/workspace`.
    workdir: Option<String>,
    /// Standard input; for a command in the background no more than 64 KB.
    stdin: Option<String>,
    /// Whether more can be written later.
    stdin_open: Option<bool>,
    /// A terminal of its own; all output is then one stream.
    terminal: Option<TerminalSize>,
    /// Its time; `limits.timeout_ms` of the sandbox unless given, and none in the background.
    #[schema(minimum = 1)]
    timeout_ms: Option<i64>,
    /// How much of its output is kept for whoever looks later; 1 MB unless said otherwise.
    #[schema(minimum = 65536, maximum = 67108864)]
    keep_bytes: Option<i64>,
    /// Whether it goes on by itself, until it or the sandbox ends.
    background: Option<bool>,
}

/// The size of a terminal.
#[derive(Serialize, ToSchema)]
pub(crate) struct TerminalSize {
    #[schema(minimum = 1)]
    rows: u16,
    #[schema(minimum = 1)]
    columns: u16,
}

/// How a command stands.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CommandState {
    Running,
    Ended,
}

/// A command.
#[derive(Serialize, ToSchema)]
pub(crate) struct Command {
    id: u64,
    /// Its number in the sandbox.
    pid: u32,
    /// What was started, cut to a bounded length.
    command: String,
    terminal: bool,
    state: CommandState,
    /// Null while it runs, and when it was signalled or killed.
    #[schema(required)]
    exit_code: Option<u8>,
    /// `SIGSEGV` and its kin.
    #[schema(required)]
    signal: Option<String>,
    timed_out: bool,
    output_bytes: u64,
    /// What policies say of it, where it was just started; and what it was kept from, as in a result: calls that its own
    /// processes were refused, and limits and hosts where nothing else ran beside it. Not in lists.
    findings: Vec<super::Finding>,
}

/// A command whose end was waited for.
#[derive(Serialize, ToSchema)]
pub(crate) struct EndedCommand {
    #[serde(flatten)]
    command: Command,
    #[serde(flatten)]
    written: Written,
    duration_ms: f64,
}

/// What a command wrote: `limits.output_bytes` of each stream, head and tail.
#[derive(Serialize, ToSchema)]
pub(crate) struct Written {
    stdout: String,
    stderr: String,
    stdout_truncated: bool,
    stderr_truncated: bool,
    /// Only where the bytes were not UTF-8.
    stdout_base64: Option<String>,
    /// Only where the bytes were not UTF-8.
    stderr_base64: Option<String>,
}

/// A part of what a command wrote, without a hole.
#[derive(Serialize, ToSchema)]
pub(crate) struct CommandOutput {
    from: u64,
    /// The byte with which to go on.
    next: u64,
    /// How many of them are no longer kept.
    lost_bytes: u64,
    #[serde(flatten)]
    written: Written,
    command: Command,
}

/// Commands, oldest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct CommandList {
    commands: Vec<Command>,
}

/// A signal: `SIGINT`, `INT` or 2.
#[derive(Serialize, ToSchema)]
pub(crate) struct CommandSignal {
    #[schema(value_type = String, example = "SIGINT")]
    signal: String,
}
