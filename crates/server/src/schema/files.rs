//! Files in sandboxes.

use serde::Serialize;
use utoipa::ToSchema;

/// Raw bytes.
#[derive(Serialize, ToSchema)]
#[schema(value_type = String, format = Binary)]
pub(crate) struct Bytes(Vec<u8>);

/// Metadata of a file.
#[derive(Serialize, ToSchema)]
pub(crate) struct FileInfo {
    /// File type: file, directory, link or other.
    kind: String,
    /// Size in bytes.
    size: u64,
    /// Permission bits in octal, for example 0644.
    permissions: String,
    /// Modification time in milliseconds since 1970.
    modified: i64,
    /// Target of a symbolic link.
    #[schema(required)]
    target: Option<String>,
}

/// An entry of a directory.
#[derive(Serialize, ToSchema)]
pub(crate) struct FolderEntry {
    /// File name.
    name: String,
    #[serde(flatten)]
    file: FileInfo,
}

/// A page of a directory listing.
#[derive(Serialize, ToSchema)]
pub(crate) struct FolderPage {
    /// Entries, sorted by name.
    entries: Vec<FolderEntry>,
    /// Cursor of the next page; null on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// Result of writing a file.
#[derive(Serialize, ToSchema)]
pub(crate) struct WrittenFile {
    /// Number of bytes written.
    bytes: u64,
}

/// A directory to create.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewFolder {
    /// Path of the directory.
    path: String,
    /// Whether to create missing parents and accept an existing directory; default true.
    parents: Option<bool>,
    /// Permission bits in octal, for example 0755.
    permissions: Option<String>,
}

/// A file or directory to move.
#[derive(Serialize, ToSchema)]
pub(crate) struct Move {
    /// Current path.
    from: String,
    /// New path.
    to: String,
    /// Whether to replace an existing file at the new path.
    replace: Option<bool>,
}

/// Permissions of a file to set.
#[derive(Serialize, ToSchema)]
pub(crate) struct Permissions {
    /// Path of the file.
    path: String,
    /// Permission bits in octal, for example 0644.
    permissions: String,
}

/// Result of unpacking an archive.
#[derive(Serialize, ToSchema)]
pub(crate) struct Unpacked {
    /// Number of files, directories and links created.
    entries: u64,
    /// Total size of the files in bytes.
    bytes: u64,
}

/// A change of a file, sent as an event `change`.
#[derive(Serialize, ToSchema)]
pub(crate) struct Change {
    /// Type of change: created, modified, removed, `moved_from`, `moved_to`, attributes, overflow or gone.
    kind: String,
    /// Path relative to the watched directory; empty for the directory itself.
    path: String,
    /// Whether it is a directory.
    directory: bool,
    /// Number that pairs the `moved_from` and `moved_to` of one move.
    #[schema(required)]
    r#move: Option<u32>,
}
