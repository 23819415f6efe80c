//! The port of long-lived sandboxes, with commands, files, watches and network ports.
//!
//! ```text
//! SandboxRequest → admit → AdmittedSandbox → provider.open(plan) → SandboxHandle
//!
//! SandboxHandle ─┬─ commands()   start, attach, signal            running ⇄ paused
//!                ├─ files()      read, write, archives               └──────┴──▶ ended: closed, dropped, or lost
//!                ├─ run          a task, as in a one-shot execution
//!                └─ pause · resume · stats · close
//! ```
//!
//! Paths are absolute, or relative to the workspace. They are resolved inside the sandbox, as the sandbox
//! user, never on the host.

mod error;
mod failure;

use std::fmt::Debug;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::finding::Finding;
use crate::limits::Limits;
use crate::network::HostRules;
use crate::outcome::{Outcome, Receipt};
use crate::package_layer::PackageLayer;
use crate::plan::{Task, WORKSPACE};
use crate::provider::{BoxFuture, ProviderError, Sink};

pub use belljar_model::files::{
    ArchiveFormat, ArchiveLimits, ChangeKind, DirectoryEntry, DirectoryPage, FileChange, FileKind,
    FileMetadata, UnpackSummary, WriteMode, WriteOptions,
};
pub use belljar_model::process::{
    AttachOptions, CommandEnding, CommandLine, OutputEvent, ProcessId, ProcessInfo, StartCommand, StdinMode,
    TerminalSize,
};
pub use belljar_model::sandbox::SandboxPhase;
pub use belljar_model::stats::SandboxStats;
pub use error::SandboxError;
pub use failure::{Failure, FailureKind};

/// The result of an operation on a long-lived sandbox.
pub type SandboxFuture<'a, T> = BoxFuture<'a, Result<T, SandboxError>>;

/// A stream of bytes, read in constant memory. Its errors carry a [`SandboxError`]; see
/// [`SandboxError::from_io`].
pub type ByteSource<'a> = Pin<Box<dyn AsyncRead + Send + 'a>>;

/// A stream that can be read and written.
pub trait Duplex: AsyncRead + AsyncWrite + Debug + Send {}
impl<T: AsyncRead + AsyncWrite + Debug + Send> Duplex for T {}

/// A connection to a program in the sandbox.
pub type ByteStream = Pin<Box<dyn Duplex>>;

/// Network access of a sandbox with a gate: what it allows, and the traffic so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkStats {
    /// The hosts that the gate allows.
    pub rules: HostRules,
    /// Findings about refused connections.
    pub refused: Vec<Finding>,
    /// Number of connections made.
    pub connections: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

/// Capabilities of a provider's long-lived sandboxes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxCapabilities {
    /// Why they cannot be paused; `None` if they can.
    pub cannot_pause: Option<String>,
    /// Why packages cannot be added to open ones, and what to do instead; `None` if they can.
    pub cannot_add_packages: Option<String>,
    /// Why their disk cannot be in a file; `None` if it can.
    pub cannot_use_disk_file: Option<String>,
    /// Why their root cannot be writable; `None` if it can.
    pub cannot_write_root: Option<String>,
}

/// A long-lived sandbox. Dropping it kills everything in it.
pub trait SandboxHandle: Debug + Send + Sync {
    /// Returns the lifecycle state.
    fn state(&self) -> SandboxPhase;

    /// Returns the commands of the sandbox.
    fn commands(&self) -> &dyn Commands;

    /// Returns the files of the sandbox.
    fn files(&self) -> &dyn Files;

    /// Runs a task like a one-shot execution, but in this sandbox, with its files. `limits` has the task's
    /// own time and output limits; the others are the sandbox's. `cancel` ends the task early.
    fn run<'a>(
        &'a self,
        task: &'a Task,
        limits: &'a Limits,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> SandboxFuture<'a, Outcome>;

    /// Mounts package layers read-only, each in the place of an earlier one with its destination. Programs that
    /// start later use them.
    ///
    /// # Errors
    /// Fails where [`SandboxCapabilities::cannot_add_packages`] says so, or if a layer cannot be mounted; then
    /// others may be mounted.
    fn attach_packages<'a>(&'a self, _layers: &'a [PackageLayer]) -> SandboxFuture<'a, ()> {
        let message = "packages cannot be added to an open sandbox here; name them when you create it";
        Box::pin(async move { Err(ProviderError::unsupported("dependencies", message).into()) })
    }

    /// Connects to a TCP port on the sandbox's loopback.
    fn open_port(&self, port: u16) -> SandboxFuture<'_, ByteStream>;

    /// Freezes every process, whether or not it handles signals.
    fn pause(&self) -> SandboxFuture<'_, ()>;

    /// Resumes a paused sandbox.
    fn resume(&self) -> SandboxFuture<'_, ()>;

    /// Kills every program and blocks new programs and writes until [`release`](Self::release); files can
    /// still be read and removed. The default implementation closes the sandbox.
    fn halt(&self, _why: String) -> SandboxFuture<'_, ()> {
        Box::pin(async {
            self.close().await;
            Ok(())
        })
    }

    /// Allows programs to start again after [`halt`](Self::halt).
    fn release(&self) {}

    /// Returns why the sandbox is halted, or `None`.
    fn halt_reason(&self) -> Option<String> {
        None
    }

    /// Returns the receipt: what enforces the sandbox.
    fn receipt(&self) -> SandboxFuture<'_, Receipt>;

    /// Returns the current resource usage, also while paused.
    fn stats(&self) -> SandboxFuture<'_, SandboxStats>;

    /// Returns findings about everything denied to any process of the sandbox since it was opened.
    fn denial_findings(&self) -> SandboxFuture<'_, Vec<Finding>>;

    /// Returns the network access, if the sandbox has a gate.
    fn network_stats(&self) -> Option<NetworkStats> {
        None
    }

    /// Replaces what the gate allows; connections that are no longer allowed are closed.
    ///
    /// # Errors
    /// Fails if the sandbox was opened with another network mode than `hosts` and `internet`, and so has no
    /// gate.
    fn set_hosts(&self, _rules: HostRules) -> Result<(), SandboxError> {
        Err(SandboxError::hosts_not_changeable())
    }

    /// Waits until the sandbox is gone; returns why it ended.
    fn ended(&self) -> BoxFuture<'_, String>;

    /// Kills everything in the sandbox and waits until nothing is left.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Commands of a sandbox. Each one is a process group and keeps running without viewers.
pub trait Commands: Debug + Send + Sync {
    /// Starts a command in the background.
    fn start(&self, command: StartCommand) -> SandboxFuture<'_, ProcessId>;

    /// Starts a command and attaches to its output from the first byte.
    fn start_attached(
        &self,
        command: StartCommand,
        attach: AttachOptions,
    ) -> SandboxFuture<'_, (ProcessId, Box<dyn CommandViewer>)>;

    /// Attaches to the output of a command, running or ended, from any offset that is still kept.
    fn attach(&self, process: ProcessId, attach: AttachOptions) -> SandboxFuture<'_, Box<dyn CommandViewer>>;

    /// Writes to standard input; waits until the bytes are in the pipe.
    fn write_stdin<'a>(&'a self, process: ProcessId, bytes: &'a [u8]) -> SandboxFuture<'a, ()>;

    /// Closes standard input. On a terminal this sends the end-of-file character.
    fn close_stdin(&self, process: ProcessId) -> SandboxFuture<'_, ()>;

    /// Sends a signal to the process group.
    fn signal(&self, process: ProcessId, signal: i32) -> SandboxFuture<'_, ()>;

    /// Waits until a command has ended, without reading its output.
    fn wait_for_end(&self, process: ProcessId) -> SandboxFuture<'_, ()>;

    /// Sets the size of the terminal.
    fn resize(&self, process: ProcessId, size: TerminalSize) -> SandboxFuture<'_, ()>;

    /// Lists running and remembered commands, oldest first.
    fn list(&self) -> SandboxFuture<'_, Vec<ProcessInfo>>;

    /// Returns findings about what a command was denied so far: system calls refused to its processes, and
    /// denials of the whole sandbox that only this command can have caused.
    fn denial_findings<'a>(&'a self, command: &'a ProcessInfo) -> SandboxFuture<'a, Vec<Finding>>;
}

/// A viewer of a command's output. Dropping it does not affect the command.
pub trait CommandViewer: Debug + Send {
    /// Returns the next event; `None` after the end.
    fn next(&mut self) -> SandboxFuture<'_, Option<OutputEvent>>;

    /// Returns the offset at which a later viewer can continue.
    fn offset(&self) -> u64;
}

/// Files of a sandbox.
pub trait Files: Debug + Send + Sync {
    /// Returns the metadata of a path; of a link itself, unless `follow` is set.
    fn stat<'a>(&'a self, path: &'a str, follow: bool) -> SandboxFuture<'a, FileMetadata>;

    /// Reads a regular file or a part of it.
    fn read<'a>(
        &'a self,
        path: &'a str,
        offset: u64,
        len: Option<u64>,
    ) -> SandboxFuture<'a, (FileMetadata, ByteSource<'static>)>;

    /// Writes everything that `source` yields; returns the number of bytes.
    fn write<'a>(
        &'a self,
        path: &'a str,
        options: WriteOptions,
        source: ByteSource<'a>,
    ) -> SandboxFuture<'a, u64>;

    /// Lists a page of a folder, sorted by name.
    fn list<'a>(
        &'a self,
        path: &'a str,
        after: Option<Vec<u8>>,
        limit: u32,
    ) -> SandboxFuture<'a, DirectoryPage>;

    /// Creates a folder. With `parents`, creates missing parents and accepts an existing folder.
    fn make_folder<'a>(
        &'a self,
        path: &'a str,
        parents: bool,
        permissions: Option<u32>,
    ) -> SandboxFuture<'a, ()>;

    /// Renames a file or folder.
    fn rename<'a>(&'a self, from: &'a str, to: &'a str, replace: bool) -> SandboxFuture<'a, ()>;

    /// Removes a file, link or folder, without following links.
    fn remove<'a>(&'a self, path: &'a str, recursive: bool) -> SandboxFuture<'a, ()>;

    /// Sets permission bits.
    fn set_mode<'a>(&'a self, path: &'a str, mode: u32) -> SandboxFuture<'a, ()>;

    /// Unpacks an archive into a folder. Entries unpacked before an error remain.
    fn upload_archive<'a>(
        &'a self,
        path: &'a str,
        format: ArchiveFormat,
        limits: ArchiveLimits,
        source: ByteSource<'a>,
    ) -> SandboxFuture<'a, UnpackSummary>;

    /// Packs a folder.
    fn download_archive<'a>(
        &'a self,
        path: &'a str,
        format: ArchiveFormat,
    ) -> SandboxFuture<'a, ByteSource<'static>>;

    /// Returns a tar of the workspace without volumes. Processes are frozen until it is read or dropped.
    fn snapshot(&self) -> SandboxFuture<'_, ByteSource<'static>> {
        self.download_archive(WORKSPACE, ArchiveFormat::Tar)
    }

    /// Watches a folder, optionally with everything below it. Reports changes made after this returns.
    fn watch<'a>(&'a self, path: &'a str, recursive: bool) -> SandboxFuture<'a, Box<dyn ChangeStream>>;
}

/// A watch of a folder. Dropping it ends the watch.
pub trait ChangeStream: Debug + Send {
    /// Returns the next change; `None` when the watched folder is gone.
    fn next(&mut self) -> SandboxFuture<'_, Option<FileChange>>;
}
