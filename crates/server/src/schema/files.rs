//! Files of sandboxes.

use serde::Serialize;
use utoipa::ToSchema;

/// Bytes as they are.
#[derive(Serialize, ToSchema)]
#[schema(value_type = String, format = Binary)]
pub(crate) struct Bytes(Vec<u8>);

/// What is at a path.
#[derive(Serialize, ToSchema)]
pub(crate) struct FileInfo {
    /// file, directory, link or other.
    kind: String,
    size: u64,
    /// As in 0644.
    permissions: String,
    /// Milliseconds since 1970.
    modified: i64,
    /// Where a link points.
    #[schema(required)]
    target: Option<String>,
}

/// One entry of a folder.
#[derive(Serialize, ToSchema)]
pub(crate) struct FolderEntry {
    name: String,
    #[serde(flatten)]
    file: FileInfo,
}

/// Some entries of a folder, sorted by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct FolderPage {
    entries: Vec<FolderEntry>,
    #[schema(required)]
    next_cursor: Option<String>,
}

/// What a write left.
#[derive(Serialize, ToSchema)]
pub(crate) struct WrittenFile {
    bytes: u64,
}

/// A folder to make.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewFolder {
    path: String,
    /// Makes missing folders, and it may exist already; true unless said otherwise.
    parents: Option<bool>,
    /// As in 0755.
    permissions: Option<String>,
}

/// A file or folder to move.
#[derive(Serialize, ToSchema)]
pub(crate) struct Move {
    from: String,
    to: String,
    /// Also where something is in the way.
    replace: Option<bool>,
}

/// Permissions to set.
#[derive(Serialize, ToSchema)]
pub(crate) struct Permissions {
    path: String,
    /// As in 0644.
    permissions: String,
}

/// What came out of an archive.
#[derive(Serialize, ToSchema)]
pub(crate) struct Unpacked {
    /// Files, folders and links.
    entries: u64,
    /// Bytes of all files together.
    bytes: u64,
}

/// What happened to a file: an event `change`.
#[derive(Serialize, ToSchema)]
pub(crate) struct Change {
    /// created, modified, removed, `moved_from`, `moved_to`, attributes, overflow or gone.
    kind: String,
    /// Relative to what is watched; empty for that itself.
    path: String,
    directory: bool,
    /// The same in both halves of a move.
    #[schema(required)]
    r#move: Option<u32>,
}
