//! Paths of files in a sandbox. They are only checked here; the guest alone resolves them.

use belljar_engine::sandbox_handle::{DirectoryEntry, FileKind, FileMetadata};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Error;
use crate::http::query::Query;

/// Maximum length of a path on Linux in bytes.
const MAX_PATH_BYTES: usize = 4_095;

/// Returns the parameter `path` of a query.
pub(super) fn from_query(query: &Query) -> Result<&str, Error> {
    check_path("path", query.get("path").unwrap_or_default())
}

/// Checks that a path is possible.
pub(super) fn check_path<'a>(field: &'static str, path: &'a str) -> Result<&'a str, Error> {
    let wrong = match path {
        "" => "is required: absolute, or relative to /workspace",
        path if path.contains('\0') => "contains a NUL byte",
        path if path.len() > MAX_PATH_BYTES => "is longer than 4095 bytes",
        path => return Ok(path),
    };
    Err(Error::Invalid { field, message: wrong.to_owned() })
}

/// Parses permission bits in octal, like `chmod`.
pub(super) fn permissions(text: &str) -> Result<u32, Error> {
    let digits = (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let bits = digits.then(|| u32::from_str_radix(text, 8).ok()).flatten();
    let message = || "must be three or four octal digits, for example 0644".to_owned();
    bits.ok_or_else(|| Error::Invalid { field: "permissions", message: message() })
}

/// Metadata of a file.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FileInfo {
    /// File type: file, directory, link or other.
    kind: &'static str,
    /// Modification time in milliseconds since 1970.
    modified: i64,
    /// Permission bits in octal, for example 0644.
    permissions: String,
    /// Size in bytes.
    size: u64,
    /// Target of a symbolic link.
    target: Option<String>,
}

impl From<FileMetadata> for FileInfo {
    fn from(metadata: FileMetadata) -> Self {
        let kind = match metadata.kind {
            FileKind::File => "file",
            FileKind::Directory => "directory",
            FileKind::Link => "link",
            FileKind::Other => "other",
        };
        Self {
            kind,
            modified: metadata.modified_ms,
            permissions: format!("{:04o}", metadata.mode & 0o7777),
            size: metadata.size,
            target: metadata.target,
        }
    }
}

/// An entry of a directory.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FolderEntry {
    /// File name.
    name: String,
    #[serde(flatten)]
    file: FileInfo,
}

impl From<DirectoryEntry> for FolderEntry {
    fn from(entry: DirectoryEntry) -> Self {
        Self { name: entry.name, file: entry.metadata.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_permissions_are_checked() {
        for wrong in ["", "a\0b", &"é".repeat(2_048)] {
            assert!(check_path("path", wrong).is_err());
        }
        for fine in ["../../etc/passwd", "%2e%2e%2f", ".", &"é".repeat(2_047), "-rf", "a\r\nb"] {
            assert_eq!(check_path("path", fine).unwrap(), fine);
        }
        assert_eq!((permissions("0644").unwrap(), permissions("755").unwrap()), (0o644, 0o755));
        for wrong in ["", "8", "0x1", "99", "+644", "00644", "0888"] {
            assert!(permissions(wrong).is_err(), "{wrong}");
        }
    }
}
