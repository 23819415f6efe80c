//! Parsing of requests. It checks the shape only; [`admit`](crate::admit) checks the values.

use std::path::PathBuf;

pub use belljar_model::request::{Dependencies, FileSpec, Input, NetworkSpec, Request};

use crate::Error;
use crate::plan::Mount;

/// Maximum size of `code`, in bytes.
pub const MAX_CODE_BYTES: usize = 16 << 20;
/// Maximum size of standard input, in bytes.
pub const MAX_STDIN_BYTES: usize = 64 << 20;
/// Maximum size of a request as JSON, in bytes: the longest code and standard input, and as much again for
/// escapes, base64 and files.
pub const MAX_REQUEST_BYTES: usize = 2 * (MAX_CODE_BYTES + MAX_STDIN_BYTES);

/// Parses a request from JSON.
///
/// # Errors
/// Says what is invalid and where, and names unknown fields.
pub fn parse(json: &[u8]) -> Result<Request, Error> {
    if json.len() > MAX_REQUEST_BYTES {
        return Err(too_long());
    }
    crate::json::parse_object(json)
}

/// Parses an input from JSON.
///
/// # Errors
/// Says what is invalid and where, and names unknown fields.
pub fn parse_input(json: &[u8]) -> Result<Input, Error> {
    if json.len() > MAX_REQUEST_BYTES {
        return Err(too_long());
    }
    crate::json::parse_object(json)
}

/// Returns the error for a request longer than [`MAX_REQUEST_BYTES`], also for callers that stop reading early.
pub fn too_long() -> Error {
    let bound = crate::quantity::show_bytes(MAX_REQUEST_BYTES as u64);
    Error::invalid("request", format!("more than {bound}; leave out some of its input"))
}

/// Paths on the host, which only a local user may set. No wire format carries them.
#[derive(Debug, Clone, Default)]
pub struct HostPaths {
    /// A host folder to use as the workspace.
    pub host_workspace: Option<PathBuf>,
    /// Additional host folders and files.
    pub mounts: Vec<Mount>,
    /// Folder of an unpacked root.
    pub image: Option<PathBuf>,
    /// Name of the file that the code came from.
    pub source_name: Option<String>,
    /// Path of the file with the code, relative to the host workspace, if it is in there.
    pub source_in_workspace: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(json: &str) -> String {
        parse(json.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn invalid_requests_are_refused_with_a_position() {
        assert_eq!(
            refused("{\"code\": 1"),
            "request: invalid type: integer `1`, expected a string (column 10)"
        );
        assert_eq!(refused("{\"code\""), "request: not JSON: EOF while parsing an object (column 7)");
        assert_eq!(refused("{\n nope}"), "request: not JSON: key must be a string (line 2, column 2)");
        assert!(refused(r#"{"codes": ""}"#).starts_with("request: unknown field `codes`, expected one of"));
        assert!(refused(r#"{"playground": "/"}"#).contains("unknown field `playground`"));
        for nothing in ["", "null", "7", r#"["python", "print(1)"]"#] {
            assert_eq!(refused(nothing), "request: is not a JSON object");
        }
        assert_eq!(
            refused(&" ".repeat(MAX_REQUEST_BYTES + 1)),
            "request: more than 160 MB; leave out some of its input"
        );
    }
}
