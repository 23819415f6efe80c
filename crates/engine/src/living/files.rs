//! Words about files, archives and changes.

use serde::{Deserialize, Serialize};

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, pipe or socket.
    Other,
}

/// What is known about a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// What it is.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Milliseconds since 1970.
    pub modified_ms: i64,
    /// Where a link points.
    pub target: Option<String>,
}

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name; bytes that are no UTF-8 are U+FFFD.
    pub name: String,
    /// What is known about it.
    pub metadata: Metadata,
}

/// Some entries of a folder, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Where the next page begins, opaque; `None` at the end.
    pub next: Option<Vec<u8>>,
}

/// What a write does with what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteMode {
    /// Nothing may be there.
    Create,
    /// It is emptied first.
    Replace,
    /// Bytes go to the end.
    Append,
    /// Bytes go to this place; what is there stays around them.
    At(u64),
}

/// How a file is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteOptions {
    /// What happens to what is there.
    pub mode: WriteMode,
    /// Under another name first and renamed at the end, so that nobody ever sees half of it.
    pub atomic: bool,
    /// Makes missing folders.
    pub parents: bool,
    /// Permission bits of a new file.
    pub permissions: Option<u32>,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { mode: WriteMode::Replace, atomic: false, parents: true, permissions: None }
    }
}

/// How a folder is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArchiveFormat {
    /// A plain tar.
    Tar,
    /// A tar, compressed by gzip.
    TarGz,
    /// A zip.
    Zip,
}

/// What an archive may grow to when it is unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveLimits {
    /// Entries.
    pub entries: u64,
    /// Bytes of all files together.
    pub bytes: u64,
    /// Times the packed size, once more than a megabyte has come out.
    pub ratio: u32,
    /// Whether links may lead out of the folder, as those of a sandbox's own files do. None is followed anyway.
    pub any_link: bool,
}

impl Default for ArchiveLimits {
    fn default() -> Self {
        Self { entries: 100_000, bytes: 1 << 30, ratio: 200, any_link: false }
    }
}

/// What an upload left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    /// Files, folders and links.
    pub entries: u64,
    /// Bytes of all files together.
    pub bytes: u64,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// It is new.
    Created,
    /// Its bytes changed.
    Modified,
    /// It is gone.
    Removed,
    /// It went away under another name; `MovedTo` with the same number, if it stayed in what is watched.
    MovedFrom(u32),
    /// It came from another name.
    MovedTo(u32),
    /// Its permissions or times changed.
    Attributes,
    /// Some changes were lost: look for yourself.
    Overflow,
    /// What is watched is itself gone; nothing follows.
    Gone,
}

/// A change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// To what, relative to what is watched; empty for that itself.
    pub path: String,
    /// Whether it is a folder.
    pub directory: bool,
}
