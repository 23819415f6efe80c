//! Paths of files in a sandbox. They are only checked here; the guest alone resolves them.

use std::fmt::Write;

use belljar_engine::sandbox_handle::{DirectoryEntry, FileKind, FileMetadata};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Error;
use crate::query::Query;

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

/// Returns a `Content-Disposition` by RFC 6266: an ASCII name for every client, and the real name encoded by
/// RFC 5987. Only ASCII letters, digits and a few signs of a name reach the header.
pub(super) fn attachment(path: &str, ending: &str) -> String {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let name = match name {
        "" | "." | ".." => "workspace",
        name => name,
    };
    let plain = |letter: char| letter.is_ascii_alphanumeric() || " .-_+@=,()".contains(letter);
    let simple: String = name.chars().map(|letter| if plain(letter) { letter } else { '_' }).collect();
    let mut text = format!("attachment; filename=\"{simple}{ending}\"; filename*=UTF-8''");
    for byte in name.bytes().chain(ending.bytes()) {
        match byte {
            b'.' | b'-' | b'_' | b'~' => text.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => text.push(char::from(byte)),
            // Writing to a string cannot fail.
            byte => drop(write!(text, "%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_header() {
        let shown = |path| attachment(path, "");
        assert_eq!(shown("a/b c.txt"), r#"attachment; filename="b c.txt"; filename*=UTF-8''b%20c.txt"#);
        assert_eq!(
            shown("x\r\nSet-Cookie: a=b\"\\é"),
            "attachment; filename=\"x__Set-Cookie_ a=b___\"; filename*=UTF-8''x%0D%0ASet-Cookie%3A%20a%3Db%22%5C%C3%A9"
        );
        assert_eq!(
            attachment("/a/..", ".tar.gz"),
            "attachment; filename=\"workspace.tar.gz\"; filename*=UTF-8''workspace.tar.gz"
        );
    }

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
