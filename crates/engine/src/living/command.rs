//! Words about commands that run in a sandbox.

use serde::{Deserialize, Serialize};

use crate::provider::Stream;

/// A process that the guest started; never used for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId(pub u64);

/// What to execute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandLine {
    /// A program, looked up in the `PATH` of its environment, and its arguments.
    Program(Vec<String>),
    /// A line for `/bin/sh -c`.
    Shell(String),
}

/// What a process reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdin {
    /// Nothing.
    Closed,
    /// What is written to it later.
    Open,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

/// A process to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartCommand {
    /// What to execute.
    pub command: CommandLine,
    /// Its environment, beside what every process of the sandbox has.
    pub env: Vec<(String, String)>,
    /// Where it starts; the workspace otherwise.
    pub workdir: Option<String>,
    /// What it reads; a terminal is always open.
    pub stdin: Stdin,
    /// A terminal of its own; its output is then all one stream.
    pub terminal: Option<TerminalSize>,
    /// Its process group is killed after so many milliseconds.
    pub timeout_ms: Option<u64>,
    /// So much of its output is kept for whoever attaches later.
    pub keep_bytes: u32,
}

impl StartCommand {
    fn of(command: CommandLine) -> Self {
        Self {
            command,
            env: Vec::new(),
            workdir: None,
            stdin: Stdin::Closed,
            terminal: None,
            timeout_ms: None,
            keep_bytes: 1 << 20,
        }
    }

    /// A program and its arguments, with everything else as it mostly is.
    pub fn program<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self::of(CommandLine::Program(argv.into_iter().map(Into::into).collect()))
    }

    /// A line for the shell, with everything else as it mostly is.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::of(CommandLine::Shell(line.into()))
    }
}

/// How to look at the output of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// From this byte of its output on.
    pub from: u64,
    /// The process waits when its viewer falls behind by more than what is kept, instead of the viewer losing bytes.
    pub hold: bool,
}

/// How a process in a sandbox ended, as far as its parent can tell. What a limit had to do with it is told of whole tasks,
/// by [`outcome::Ending`](crate::outcome::Ending).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// By itself.
    Exited(u8),
    /// By a signal.
    Signalled(i32),
    /// Its time was over.
    TimedOut,
}

/// A process, for a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its number here.
    pub id: ProcessId,
    /// Its number in the sandbox.
    pub pid: u32,
    /// What was started, cut to a bounded length.
    pub command: String,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// How it ended, if it has.
    pub ending: Option<Ending>,
    /// How many bytes of output it has written so far.
    pub output_bytes: u64,
}

/// What a viewer sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// Output.
    Bytes {
        /// Where from; everything from a terminal is standard output.
        stream: Stream,
        /// The number of the first byte, over both streams together.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Output that is no longer kept.
    Lost {
        /// The number of the first byte.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// The process ended; the last event.
    Ended {
        /// How.
        ending: Ending,
        /// How many bytes it has written.
        output_bytes: u64,
    },
}
