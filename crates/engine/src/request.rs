//! The request object, shared by the command line, HTTP, MCP and the Python package. Unknown fields are
//! refused by name. Parsing checks the shape only; [`admit`](crate::admit) checks the values.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Error;
use crate::admit::MAX_REQUEST_BYTES;
use crate::limits::LimitsSpec;
use crate::plan::Mount;

/// A request to run code. Only `language` and `code` are required, or `command`.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Request {
    /// Language of `code`.
    pub language: Option<String>,
    /// The code.
    pub code: Option<String>,
    /// The code in base64, instead of `code`.
    pub code_base64: Option<String>,
    /// A program and its arguments, instead of `language` and `code`.
    pub command: Option<Vec<String>>,
    /// Working directory, absolute.
    pub workdir: Option<String>,
    /// Arguments for `main`.
    pub arguments: Option<Map<String, Value>>,
    /// Standard input.
    pub stdin: Option<String>,
    /// Standard input in base64, instead of `stdin`.
    pub stdin_base64: Option<String>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Files to write to the workspace.
    pub files: Vec<FileSpec>,
    /// Packages that the code needs.
    pub dependencies: Dependencies,
    /// Limits; absent ones come from the profile.
    pub limits: LimitsSpec,
    /// Network access; the profile's by default.
    pub network: Option<NetworkSpec>,
    /// Name of a profile.
    pub profile: Option<String>,
    /// Name of a policy.
    pub policy: Option<String>,
    /// Name of a provider.
    pub provider: Option<String>,
    /// Name of an image.
    pub image: Option<String>,
    /// Layers that must be enforced.
    pub require: Vec<String>,
    /// Arbitrary data, echoed in the result.
    pub metadata: Map<String, Value>,
    /// Whether to wait for the result; only a server can answer earlier.
    pub wait: Option<bool>,
}

impl Request {
    /// Parses a request from JSON.
    ///
    /// # Errors
    /// Says what is invalid and where, and names unknown fields.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        if json.len() > MAX_REQUEST_BYTES {
            return Err(Self::too_long());
        }
        crate::json::parse_object(json)
    }

    /// Returns the error for a request longer than [`MAX_REQUEST_BYTES`], also for callers that stop reading
    /// early.
    pub fn too_long() -> Error {
        let bound = crate::quantity::show_bytes(MAX_REQUEST_BYTES as u64);
        Error::invalid("request", format!("more than {bound}; leave out some of its input"))
    }
}

/// A file to write to the workspace.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct FileSpec {
    /// Path relative to the workspace.
    pub path: String,
    /// Content as text.
    pub content: Option<String>,
    /// Content in base64, instead of `content`.
    pub content_base64: Option<String>,
    /// Permission bits, octal: `"0755"`.
    pub mode: Option<String>,
}

/// Packages that an execution needs.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dependencies {
    /// Whether to detect packages from the code's imports.
    pub detect: Option<bool>,
    /// Packages to install.
    pub packages: Vec<String>,
}

/// Network access, as requested.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSpec {
    /// `none`, `hosts` or `full`.
    pub mode: String,
    /// Allowed hosts, for mode `hosts`.
    pub hosts: Vec<String>,
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
        Request::parse(json.as_bytes()).unwrap_err().to_string()
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
