//! What is in the frames that are not bytes.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{
    ArchiveFormat, ArchiveLimits, Attach, Change, Ending, Metadata, Page, ProcessId, ProcessInfo,
    StartCommand, Stream, TerminalSize, Unpacked, WriteOptions,
};

/// The version of all of this; two sides with different ones do not talk.
pub const VERSION: u32 = 1;
/// Tells a guest from a stranger.
pub const MAGIC: u32 = 0x6a6c_6c62;

/// The first message of each side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u32,
    /// Bounds, from the host; the guest says them back.
    pub settings: Settings,
}

/// The guest's bounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Where relative paths and processes start.
    pub workdir: String,
    /// Processes that run or are remembered; those that ended longest ago are forgotten first.
    pub processes: u32,
    /// Output that is kept, of all processes together.
    pub kept_bytes: u64,
    /// Channels at one time.
    pub channels: u32,
    /// Changes that wait in one watch before it overflows.
    pub changes: u32,
    /// Folders in one watch.
    pub watched_folders: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workdir: "/workspace".to_owned(),
            processes: 64,
            kept_bytes: 64 << 20,
            channels: 256,
            changes: 1024,
            watched_folders: 8192,
        }
    }
}

/// What the host asks for. Paths are absolute, or relative to the work folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each one is a method of the host's half, which says what it does")]
pub enum Request {
    Start { command: StartCommand, attach: Option<Attach> },
    Attach { process: ProcessId, attach: Attach },
    Stdin { process: ProcessId, close: bool },
    Signal { process: ProcessId, signal: i32 },
    Resize { process: ProcessId, size: TerminalSize },
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

/// What the guest answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each one belongs to the request of that name")]
pub enum Reply {
    /// It is done, and there is nothing to say about it.
    Ok,
    Started(ProcessId),
    /// The process ended after so many bytes of output.
    Ended {
        ending: Ending,
        output_bytes: u64,
    },
    Processes(Vec<ProcessInfo>),
    Metadata(Metadata),
    Page(Page),
    Written(u64),
    Unpacked(Unpacked),
    Space(Space),
}

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Bytes in use.
    pub used_bytes: u64,
    /// Whether no block or no inode is left.
    pub full: bool,
    /// Whether there is a limit on how many files it holds.
    pub counts_files: bool,
}

/// What comes while a channel is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Output of a process; the bytes are behind the message.
    Output {
        /// Where from.
        stream: Stream,
        /// The number of the first byte.
        offset: u64,
    },
    /// Output that is no longer kept: bytes from this number on.
    Lost {
        /// The number of the first byte.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// A file changed.
    Change(Change),
}

/// A message as the body of a frame.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Only a serializer that refuses can fail here, and there is none among these types.
    postcard::to_allocvec(message).unwrap_or_default()
}

/// A message that is all of a body.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    split(body).and_then(|(message, rest)| rest.is_empty().then_some(message))
}

/// A message and the bytes behind it.
pub fn split<T: DeserializeOwned>(body: &[u8]) -> Option<(T, &[u8])> {
    postcard::take_from_bytes(body).ok()
}
