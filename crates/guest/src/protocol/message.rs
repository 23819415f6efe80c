//! The messages in frames other than raw bytes.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{
    ArchiveFormat, ArchiveLimits, AttachOptions, CommandEnding, DirectoryPage, FileChange, FileMetadata,
    ProcessId, ProcessInfo, StartCommand, Stream, TerminalSize, UnpackSummary, WriteOptions,
};

/// Protocol version. Two sides with different versions do not talk to each other.
pub const VERSION: u32 = 2;
/// Identifies the peer as a guest or its host.
pub const MAGIC: u32 = 0x6a6c_6c62;

/// The first message of each side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u32,
    /// Limits set by the host; the guest repeats them.
    pub settings: GuestSettings,
}

/// The guest's limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSettings {
    /// The folder in which relative paths and processes start.
    pub workdir: String,
    /// Maximum number of running and remembered processes. The one that ended first is forgotten first.
    pub processes: u32,
    /// Maximum output kept for all processes together, in bytes.
    pub kept_bytes: u64,
    /// Maximum number of concurrent channels.
    pub channels: u32,
    /// Maximum number of changes queued in one watch before it overflows.
    pub queued_changes: u32,
    /// Maximum number of folders in one watch.
    pub watched_folders: u32,
}

impl Default for GuestSettings {
    fn default() -> Self {
        Self {
            workdir: "/workspace".to_owned(),
            processes: 64,
            kept_bytes: 64 << 20,
            channels: 256,
            queued_changes: 1024,
            watched_folders: 8192,
        }
    }
}

/// A request of the host. Paths are absolute, or relative to the work folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each variant is documented by the method of `Guest` that sends it")]
pub enum GuestRequest {
    Start { command: StartCommand, attach: Option<AttachOptions> },
    Attach { process: ProcessId, attach: AttachOptions },
    Stdin { process: ProcessId, close: bool },
    Signal { process: ProcessId, signal: i32 },
    Resize { process: ProcessId, size: TerminalSize },
    WaitForEnd { process: ProcessId },
    Processes,
    EndAll,
    Stat { path: String, follow: bool },
    Read { path: String, offset: u64, len: Option<u64> },
    Write { path: String, options: WriteOptions },
    List { path: String, after: Option<Vec<u8>>, limit: u32 },
    MakeFolder { path: String, parents: bool, permissions: Option<u32> },
    Move { from: String, to: String, replace: bool },
    Remove { path: String, recursive: bool },
    SetMode { path: String, mode: u32 },
    Unpack { path: String, format: ArchiveFormat, limits: ArchiveLimits },
    Pack { path: String, format: ArchiveFormat },
    Snapshot,
    Watch { path: String, recursive: bool },
    Port { port: u16 },
    Space { path: String },
}

/// A reply of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each variant is the reply to the request of that name")]
pub enum GuestReply {
    /// Success without a result.
    Ok,
    Started(ProcessId),
    /// The process ended after this many bytes of output.
    Ended {
        ending: CommandEnding,
        output_bytes: u64,
    },
    Processes(Vec<ProcessInfo>),
    Metadata(FileMetadata),
    Page(DirectoryPage),
    Written(u64),
    Unpacked(UnpackSummary),
    Space(DiskSpace),
}

/// Usage of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSpace {
    /// Bytes in use.
    pub used_bytes: u64,
    /// Whether no blocks or no inodes are left.
    pub full: bool,
    /// Whether the number of files is limited.
    pub counts_files: bool,
}

/// A message sent while a channel is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestEvent {
    /// Output of a process; the bytes follow the message.
    Output {
        /// The stream that was written to.
        stream: Stream,
        /// Offset of the first byte.
        offset: u64,
    },
    /// Output that is no longer kept.
    Lost {
        /// Offset of the first lost byte.
        offset: u64,
        /// Number of lost bytes.
        bytes: u64,
    },
    /// A file changed.
    Change(FileChange),
}

/// Encodes a message as the body of a frame.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Only a custom serializer can fail here, and these types have none.
    postcard::to_allocvec(message).unwrap_or_default()
}

/// Decodes a message that fills the whole body.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    decode_prefix(body).and_then(|(message, rest)| rest.is_empty().then_some(message))
}

/// Decodes a message and returns the bytes that follow it.
pub fn decode_prefix<T: DeserializeOwned>(body: &[u8]) -> Option<(T, &[u8])> {
    postcard::take_from_bytes(body).ok()
}
