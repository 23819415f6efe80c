//! Paths inside, as far as anybody out here looks at them: the guest resolves them, and nobody else.

use std::fmt::Write;

use belljar_engine::living::{Entry, FileKind, Metadata};
use serde_json::{Value, json};

use crate::error::Error;
use crate::query::Query;

/// No path of Linux is longer.
const LONGEST: usize = 4_095;

/// The path of a query.
pub(super) fn of(query: &Query) -> Result<&str, Error> {
    checked("path", query.get("path").unwrap_or_default())
}

/// A path that can be one.
pub(super) fn checked<'a>(field: &'static str, path: &'a str) -> Result<&'a str, Error> {
    let wrong = match path {
        "" => "is needed: absolute, or relative to /workspace",
        path if path.contains('\0') => "has a NUL in it",
        path if path.len() > LONGEST => "is longer than 4095 bytes",
        path => return Ok(path),
    };
    Err(Error::Invalid { field, message: wrong.to_owned() })
}

/// Permission bits, as `chmod` takes them.
pub(super) fn permissions(text: &str) -> Result<u32, Error> {
    let digits = (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let bits = digits.then(|| u32::from_str_radix(text, 8).ok()).flatten();
    let message = || "is three or four octal digits, as in 0644".to_owned();
    bits.ok_or_else(|| Error::Invalid { field: "permissions", message: message() })
}

/// A file, as it is shown.
pub(super) fn shown(metadata: &Metadata) -> Value {
    let kind = match metadata.kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Link => "link",
        FileKind::Other => "other",
    };
    json!({
        "kind": kind,
        "size": metadata.size,
        "permissions": format!("{:04o}", metadata.mode & 0o7777),
        "modified": metadata.modified_ms,
        "target": metadata.target,
    })
}

/// One of a folder, with its name.
pub(super) fn shown_entry(entry: &Entry) -> Value {
    let mut object = shown(&entry.metadata);
    object["name"] = json!(entry.name);
    object
}

/// `Content-Disposition` by RFC 6266: a name that every client can read, and the real one in RFC 5987's letters. Nothing
/// of a name reaches the header but ASCII letters, digits and a few signs.
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
            assert!(checked("path", wrong).is_err());
        }
        for fine in ["../../etc/passwd", "%2e%2e%2f", ".", &"é".repeat(2_047), "-rf", "a\r\nb"] {
            assert_eq!(checked("path", fine).unwrap(), fine);
        }
        assert_eq!((permissions("0644").unwrap(), permissions("755").unwrap()), (0o644, 0o755));
        for wrong in ["", "8", "0x1", "99", "+644", "00644", "0888"] {
            assert!(permissions(wrong).is_err(), "{wrong}");
        }
    }
}
