//! Types for files, archives and file changes.

use serde::{Deserialize, Serialize};

/// Type of a file.
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

/// Metadata of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMetadata {
    /// Type of the file.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Modification time, in milliseconds since 1970.
    pub modified_ms: i64,
    /// Target of a symbolic link.
    pub target: Option<String>,
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryEntry {
    /// Name of the entry; invalid UTF-8 becomes U+FFFD.
    pub name: String,
    /// Metadata of the entry.
    pub metadata: FileMetadata,
}

/// A page of a folder listing, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryPage {
    /// The entries.
    pub entries: Vec<DirectoryEntry>,
    /// Opaque position of the next page; `None` at the end.
    pub next: Option<Vec<u8>>,
}

/// How a write treats an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteMode {
    /// Fails if the file exists.
    Create,
    /// Truncates the file first.
    Replace,
    /// Appends to the file.
    Append,
    /// Writes at this offset and keeps the other bytes.
    At(u64),
}

/// Options for writing a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteOptions {
    /// How an existing file is treated.
    pub mode: WriteMode,
    /// Writes to a temporary name and renames at the end, so that a partial file is never visible.
    pub atomic: bool,
    /// Creates missing parent folders.
    pub parents: bool,
    /// Permission bits of a new file.
    pub permissions: Option<u32>,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { mode: WriteMode::Replace, atomic: false, parents: true, permissions: None }
    }
}

/// Format of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArchiveFormat {
    /// An uncompressed tar.
    Tar,
    /// A tar, compressed with gzip.
    TarGz,
    /// A zip.
    Zip,
}

/// Bounds on unpacking an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveLimits {
    /// Maximum number of entries.
    pub entries: u64,
    /// Maximum total size of all files, in bytes.
    pub bytes: u64,
    /// Maximum compression ratio, checked after the first megabyte of output.
    pub ratio: u32,
    /// Allows links that point out of the folder, as in a snapshot of a sandbox. Links are never followed.
    pub any_link: bool,
}

impl Default for ArchiveLimits {
    fn default() -> Self {
        Self { entries: 100_000, bytes: 1 << 30, ratio: 200, any_link: false }
    }
}

/// Summary of an unpacked archive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnpackSummary {
    /// Number of files, folders and links.
    pub entries: u64,
    /// Total size of all files, in bytes.
    pub bytes: u64,
}

/// Kind of a file change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// Created.
    Created,
    /// Content changed.
    Modified,
    /// Removed.
    Removed,
    /// Renamed from this path; if the new path is watched too, a `MovedTo` has the same number.
    MovedFrom(u32),
    /// Renamed to this path.
    MovedTo(u32),
    /// Permissions or times changed.
    Attributes,
    /// Some changes were lost; list the folder again.
    Overflow,
    /// The watched folder itself is gone; no more events follow.
    Gone,
}

/// A change to a file or folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// Kind of the change.
    pub kind: ChangeKind,
    /// Path relative to the watched folder; empty for the folder itself.
    pub path: String,
    /// Whether it is a folder.
    pub directory: bool,
}
