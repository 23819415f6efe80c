//! Downloads of files that tenants wrote. A browser saves them and never shows them as a page of this server.

use std::fmt::Write;

use axum::http::{HeaderName, HeaderValue, header};

/// Gives a download an opaque origin without scripts, should a browser show it nevertheless.
const SANDBOX_POLICY: HeaderValue = HeaderValue::from_static("sandbox");
/// Forbids browsers to guess another type.
const NO_SNIFFING: HeaderValue = HeaderValue::from_static("nosniff");

/// Returns the headers of a download of the file or directory at `path`, whose name gets an ending.
pub(crate) fn download_headers(path: &str, ending: &str, media_type: &str) -> [(HeaderName, HeaderValue); 4] {
    // The value is ASCII without control characters, so the conversion cannot fail.
    let attachment = HeaderValue::try_from(attachment(path, ending));
    let media_type = HeaderValue::try_from(media_type);
    [
        (header::CONTENT_TYPE, media_type.unwrap_or(HeaderValue::from_static("application/octet-stream"))),
        (header::CONTENT_DISPOSITION, attachment.unwrap_or(HeaderValue::from_static("attachment"))),
        (header::CONTENT_SECURITY_POLICY, SANDBOX_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, NO_SNIFFING),
    ]
}

/// Returns a `Content-Disposition` by RFC 6266: an ASCII name for every client, and the real name encoded by
/// RFC 5987. Only ASCII letters, digits and a few signs of a name reach the header.
fn attachment(path: &str, ending: &str) -> String {
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
    fn downloads_are_never_pages() {
        let headers = download_headers("a/page.html", "", "application/octet-stream");
        let value = |name| &headers.iter().find(|(known, _)| *known == name).unwrap().1;
        assert!(value(header::CONTENT_DISPOSITION).to_str().unwrap().starts_with("attachment; "));
        assert_eq!(value(header::CONTENT_SECURITY_POLICY), "sandbox");
        assert_eq!(value(header::X_CONTENT_TYPE_OPTIONS), "nosniff");
    }

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
}
