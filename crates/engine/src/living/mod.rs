//! The port of living sandboxes: a place that stays, with commands, files, watches and ports in it.
//!
//! ```text
//! SandboxRequest → admit → AdmittedSandbox → provider.open_living(plan) → Living ─┬─ commands()   start, attach, signal
//!                                                                                 ├─ files()      read, write, archives
//!                  running ⇄ paused                                               ├─ run          a task, as in one-shot runs
//!                     └──────┴──▶ ended: closed, dropped, or lost                 └─ pause · resume · stats · close
//! ```
//!
//! Paths are absolute, or relative to the workspace. They are resolved inside, as the sandbox user, and never on the host.

mod command;
mod error;
mod failure;
mod files;

use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::finding::Finding;
use crate::limits::Limits;
use crate::network::HostRules;
use crate::outcome::{Outcome, Receipt};
use crate::plan::{Task, WORKSPACE};
use crate::provider::{BoxFuture, Sink};

pub use command::{
    Attach, CommandLine, Ending, OutputEvent, ProcessId, ProcessInfo, StartCommand, Stdin, TerminalSize,
};
pub use error::LivingError;
pub use failure::{Failure, FailureKind};
pub use files::{
    ArchiveFormat, ArchiveLimits, Change, ChangeKind, Entry, FileKind, Metadata, Page, Unpacked, WriteMode,
    WriteOptions,
};

/// What comes of asking a living sandbox for something.
pub type Asked<'a, T> = BoxFuture<'a, Result<T, LivingError>>;

/// Bytes to read, in constant memory. Its errors carry a [`LivingError`]: see [`LivingError::of_io`].
pub type ByteSource<'a> = Pin<Box<dyn AsyncRead + Send + 'a>>;

/// Both halves of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Debug + Send {}
impl<T: AsyncRead + AsyncWrite + Debug + Send> Duplex for T {}

/// A connection to a program inside.
pub type ByteStream = Pin<Box<dyn Duplex>>;

/// What becomes of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It can be asked.
    Running,
    /// Nothing in it runs until it is resumed.
    Paused,
    /// It is gone, and everything in it.
    Ended,
}

/// What a sandbox uses now. Counted from outside; a figure that this host does not keep is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Processor time since it was opened, of all its processes.
    pub cpu: Option<Duration>,
    /// Memory, files on its disk included.
    pub memory_bytes: Option<u64>,
    /// The most memory at one time.
    pub peak_memory_bytes: Option<u64>,
    /// Processes and threads, without its own first one.
    pub processes: Option<u64>,
    /// The most at one time.
    pub peak_processes: Option<u64>,
    /// Bytes on its disk.
    pub disk_bytes: Option<u64>,
    /// How many processes were killed because its memory ran out.
    pub memory_kills: u64,
    /// How many were killed because the memory for all sandboxes together ran out, and not its own.
    pub machine_memory_kills: u64,
    /// How many times a new process or thread was refused.
    pub forks_refused: u64,
    /// Whether no block or no inode is left.
    pub disk_full: bool,
}

/// What a sandbox may reach now, and what came of it so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkUse {
    /// The hosts.
    pub rules: HostRules,
    /// What it was kept from.
    pub refused: Vec<Finding>,
    /// Connections that it made.
    pub connections: u64,
    /// Bytes to the world.
    pub sent_bytes: u64,
    /// Bytes from the world.
    pub received_bytes: u64,
}

/// What a provider's living sandboxes can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivingCapabilities {
    /// Why they cannot be paused, where they cannot.
    pub cannot_pause: Option<String>,
}

/// A living sandbox. Dropping it kills everything in it.
pub trait Living: Debug + Send + Sync {
    /// What becomes of it.
    fn state(&self) -> State;

    /// Its commands.
    fn commands(&self) -> &dyn Commands;

    /// Its files.
    fn files(&self) -> &dyn Files;

    /// Runs a task as a one-shot run does, but in this sandbox, whose files it finds and leaves. Of the limits those of time
    /// and output are the task's own, the others the sandbox's; `cancel` ends it early.
    fn run<'a>(
        &'a self,
        task: &'a Task,
        limits: &'a Limits,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> Asked<'a, Outcome>;

    /// Connects to a TCP port on the loopback inside.
    fn open_port(&self, port: u16) -> Asked<'_, ByteStream>;

    /// Has nothing in it run any more, whatever it does with signals.
    fn pause(&self) -> Asked<'_, ()>;

    /// Lets it go on.
    fn resume(&self) -> Asked<'_, ()>;

    /// Kills every program in it and starts none, and writes nothing, until it is released: files can be read and
    /// removed. One that cannot be halted is closed.
    fn halt(&self, _why: String) -> Asked<'_, ()> {
        Box::pin(async {
            self.close().await;
            Ok(())
        })
    }

    /// Lets programs be started again.
    fn release(&self) {}

    /// Why it is halted, where it is.
    fn halted(&self) -> Option<String> {
        None
    }

    /// What really enforces it.
    fn receipt(&self) -> Asked<'_, Receipt>;

    /// What it uses now, paused or not.
    fn stats(&self) -> Asked<'_, Stats>;

    /// What it was kept from since it was opened, whichever of its processes that was.
    fn kept_from(&self) -> Asked<'_, Vec<Finding>>;

    /// What it may reach, where that is single hosts.
    fn network(&self) -> Option<NetworkUse> {
        None
    }

    /// Has it reach these hosts and no others from now on; what is connected to others is cut off.
    ///
    /// # Errors
    /// It was opened with everything or nothing to reach, and has no gate.
    fn set_hosts(&self, _rules: HostRules) -> Result<(), LivingError> {
        Err(LivingError::no_gate())
    }

    /// Waits until it is gone, and says why.
    fn ended(&self) -> BoxFuture<'_, String>;

    /// Kills everything in it, and waits until nothing of it is left.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Commands of a sandbox. Each is a process group of its own, and goes on when nobody looks.
pub trait Commands: Debug + Send + Sync {
    /// Starts one that goes on by itself.
    fn start(&self, command: StartCommand) -> Asked<'_, ProcessId>;

    /// Starts one and looks at it from its first byte on.
    fn start_attached(
        &self,
        command: StartCommand,
        attach: Attach,
    ) -> Asked<'_, (ProcessId, Box<dyn Output>)>;

    /// Looks at the output of one, from any byte that is still kept, also when it has ended.
    fn attach(&self, process: ProcessId, attach: Attach) -> Asked<'_, Box<dyn Output>>;

    /// Writes to its standard input; waits until it is in its pipe.
    fn write_stdin<'a>(&'a self, process: ProcessId, bytes: &'a [u8]) -> Asked<'a, ()>;

    /// Closes its standard input. On a terminal this is the end-of-file character.
    fn close_stdin(&self, process: ProcessId) -> Asked<'_, ()>;

    /// Sends a signal to its process group.
    fn signal(&self, process: ProcessId, signal: i32) -> Asked<'_, ()>;

    /// Sets the size of its terminal.
    fn resize(&self, process: ProcessId, size: TerminalSize) -> Asked<'_, ()>;

    /// All that run or are remembered, oldest first.
    fn list(&self) -> Asked<'_, Vec<ProcessInfo>>;

    /// What one was kept from so far: calls that its processes were refused; and what the sandbox as a whole was, as far as
    /// nobody but this command can have been the reason.
    fn kept_from<'a>(&'a self, command: &'a ProcessInfo) -> Asked<'a, Vec<Finding>>;
}

/// A viewer of a command. Dropping it leaves the command alone.
pub trait Output: Debug + Send {
    /// The next event; `None` after the end.
    fn next(&mut self) -> Asked<'_, Option<OutputEvent>>;

    /// The byte with which one could go on later.
    fn offset(&self) -> u64;
}

/// Files of a sandbox.
pub trait Files: Debug + Send + Sync {
    /// What is at a path; of a link itself, unless it is to be followed.
    fn stat<'a>(&'a self, path: &'a str, follow: bool) -> Asked<'a, Metadata>;

    /// Reads a regular file, or a part of it.
    fn read<'a>(
        &'a self,
        path: &'a str,
        offset: u64,
        len: Option<u64>,
    ) -> Asked<'a, (Metadata, ByteSource<'static>)>;

    /// Writes all that a source gives; how many bytes.
    fn write<'a>(&'a self, path: &'a str, options: WriteOptions, source: ByteSource<'a>) -> Asked<'a, u64>;

    /// A page of a folder, sorted by name.
    fn list<'a>(&'a self, path: &'a str, after: Option<Vec<u8>>, limit: u32) -> Asked<'a, Page>;

    /// Makes a folder; with its parents, it may exist already.
    fn make_folder<'a>(&'a self, path: &'a str, parents: bool, permissions: Option<u32>) -> Asked<'a, ()>;

    /// Renames a file or folder.
    fn rename<'a>(&'a self, from: &'a str, to: &'a str, replace: bool) -> Asked<'a, ()>;

    /// Removes a file, a link or a folder. No link is followed.
    fn remove<'a>(&'a self, path: &'a str, recursive: bool) -> Asked<'a, ()>;

    /// Sets permission bits.
    fn set_mode<'a>(&'a self, path: &'a str, mode: u32) -> Asked<'a, ()>;

    /// Unpacks an archive into a folder. What was unpacked before a refusal stays.
    fn upload_archive<'a>(
        &'a self,
        path: &'a str,
        format: ArchiveFormat,
        limits: ArchiveLimits,
        source: ByteSource<'a>,
    ) -> Asked<'a, Unpacked>;

    /// Packs a folder.
    fn download_archive<'a>(&'a self, path: &'a str, format: ArchiveFormat)
    -> Asked<'a, ByteSource<'static>>;

    /// The tar of the workspace, without volumes. Nothing runs until all of it is read, or the source is dropped.
    fn snapshot(&self) -> Asked<'_, ByteSource<'static>> {
        self.download_archive(WORKSPACE, ArchiveFormat::Tar)
    }

    /// Tells of changes in a folder, or in all below it, from when this returns.
    fn watch<'a>(&'a self, path: &'a str, recursive: bool) -> Asked<'a, Box<dyn Changes>>;
}

/// Changes of a folder. Dropping it ends the watch.
pub trait Changes: Debug + Send {
    /// The next one; `None` when what was watched is gone.
    fn next(&mut self) -> Asked<'_, Option<Change>>;
}
