//! A request as callers write it: one object for the command line, HTTP, MCP and the Python package.
//! Unknown fields are refused by name. Nothing here is checked beyond its shape: [`admit`](crate::admit) does that.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Error;
use crate::admit::MAX_REQUEST;
use crate::limits::LimitsSpec;
use crate::plan::Mount;

/// What a caller asks for. Only `language` and `code` are needed, or `command`.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Request {
    /// Language of `code`.
    pub language: Option<String>,
    /// The code.
    pub code: Option<String>,
    /// The code, base64.
    pub code_base64: Option<String>,
    /// A program and its arguments, instead of `language` and `code`.
    pub command: Option<Vec<String>>,
    /// Where it starts.
    pub workdir: Option<String>,
    /// Given to `main`.
    pub arguments: Option<Map<String, Value>>,
    /// Standard input.
    pub stdin: Option<String>,
    /// Standard input, base64.
    pub stdin_base64: Option<String>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Files put into the workspace.
    pub files: Vec<FileSpec>,
    /// Packages.
    pub dependencies: Dependencies,
    /// Limits; what is absent comes from the profile.
    pub limits: LimitsSpec,
    /// What may be reached; absent comes from the profile.
    pub network: Option<NetworkSpec>,
    /// Name of a profile.
    pub profile: Option<String>,
    /// Name of a policy.
    pub policy: Option<String>,
    /// Name of a provider.
    pub provider: Option<String>,
    /// Name of an image.
    pub image: Option<String>,
    /// Layers without which nothing may run.
    pub require: Vec<String>,
    /// Echoed in the result.
    pub metadata: Map<String, Value>,
    /// Whether the answer is the result; only a server can answer before there is one.
    pub wait: Option<bool>,
}

impl Request {
    /// Reads a request from JSON.
    ///
    /// # Errors
    /// Says what is wrong, with the name of a field that does not exist.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        if json.len() > MAX_REQUEST {
            return Err(Self::too_long());
        }
        crate::json::object(json)
    }

    /// What is said of a request longer than [`MAX_REQUEST`], also by those who do not read it to its end.
    pub fn too_long() -> Error {
        let bound = crate::quantity::show_bytes(MAX_REQUEST as u64);
        Error::invalid("request", format!("more than {bound}; leave out some of its input"))
    }
}

/// A file for the workspace.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct FileSpec {
    /// Relative to the workspace.
    pub path: String,
    /// Text.
    pub content: Option<String>,
    /// Bytes, base64.
    pub content_base64: Option<String>,
    /// Permission bits, octal: `"0755"`.
    pub mode: Option<String>,
}

/// Packages that a run needs.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dependencies {
    /// Whether to read imports from the code.
    pub detect: Option<bool>,
    /// Named packages.
    pub packages: Vec<String>,
}

/// What may be reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSpec {
    /// `none`, `hosts` or `full`.
    pub mode: String,
    /// For `hosts`.
    pub hosts: Vec<String>,
}

/// What only somebody on this machine may say: paths of the host. No wire format carries them.
#[derive(Debug, Clone, Default)]
pub struct HostPaths {
    /// A host folder that becomes the workspace.
    pub playground: Option<PathBuf>,
    /// Further host folders and files.
    pub mounts: Vec<Mount>,
    /// An unpacked root.
    pub image: Option<PathBuf>,
    /// Name of the file from which the code came.
    pub source_name: Option<String>,
    /// The code is this file of the playground, relative to it.
    pub source_in_playground: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(json: &str) -> String {
        Request::parse(json.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_request_is_refused_with_its_place() {
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
            refused(&" ".repeat(MAX_REQUEST + 1)),
            "request: more than 160 MB; leave out some of its input"
        );
    }
}
