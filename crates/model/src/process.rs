//! Processes of a sandbox: how they are started and what their viewers receive.

use serde::{Deserialize, Serialize};

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Id of a process that the guest started; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId(pub u64);

/// A command to execute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandLine {
    /// A program, looked up on the `PATH` of its environment, and its arguments.
    Program(Vec<String>),
    /// A line for `/bin/sh -c`.
    Shell(String),
}

/// Standard input of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StdinMode {
    /// Empty.
    Closed,
    /// A pipe that can be written to later.
    Open,
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Number of lines.
    pub rows: u16,
    /// Number of characters per line.
    pub columns: u16,
}

/// A command to start, with its options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartCommand {
    /// The command.
    pub command: CommandLine,
    /// Environment variables, in addition to those of every process in the sandbox.
    pub env: Vec<(String, String)>,
    /// Working directory; the workspace by default.
    pub workdir: Option<String>,
    /// Standard input; a terminal is always open.
    pub stdin: StdinMode,
    /// Allocates a terminal; all output is then one stream.
    pub terminal: Option<TerminalSize>,
    /// Milliseconds after which the process group is killed.
    pub timeout_ms: Option<u64>,
    /// Bytes of output kept for clients that attach later.
    pub keep_bytes: u32,
}

impl StartCommand {
    fn new(command: CommandLine) -> Self {
        Self {
            command,
            env: Vec::new(),
            workdir: None,
            stdin: StdinMode::Closed,
            terminal: None,
            timeout_ms: None,
            keep_bytes: 1 << 20,
        }
    }

    /// Creates a command from a program and its arguments, with default options.
    pub fn program<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self::new(CommandLine::Program(argv.into_iter().map(Into::into).collect()))
    }

    /// Creates a command from a shell line, with default options.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new(CommandLine::Shell(line.into()))
    }
}

/// Options for attaching to the output of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachOptions {
    /// Offset of the first byte of output to read.
    pub from: u64,
    /// Blocks the process when the viewer falls behind by more than the kept output, instead of losing bytes.
    pub hold: bool,
}

/// How a process in a sandbox ended, as its parent sees it. Limits are only reported for whole tasks, by
/// [`outcome::Ending`](crate::outcome::Ending).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandEnding {
    /// Exited with this status.
    Exited(u8),
    /// Killed by this signal.
    Signalled(i32),
    /// Killed by its timeout.
    TimedOut,
}

/// Status of a process, as listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Id of the process in the API.
    pub id: ProcessId,
    /// Process id in the sandbox's PID namespace.
    pub pid: u32,
    /// The command, truncated to a bounded length.
    pub command: String,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// How it ended, or `None` while it runs or its last output is read.
    pub ending: Option<CommandEnding>,
    /// Bytes of output written so far. Once it has ended, more can only come from processes that it left behind, or
    /// past a viewer that was behind at the end.
    pub output_bytes: u64,
}

/// An event that a viewer of a process receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// Output.
    Bytes {
        /// The stream; output of a terminal is always standard output.
        stream: Stream,
        /// Offset of the first byte, counted over both streams.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Output that was dropped before it was read.
    Lost {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// End of the process; the last event.
    Ended {
        /// How the process ended.
        ending: CommandEnding,
        /// Total bytes of output.
        output_bytes: u64,
    },
}
