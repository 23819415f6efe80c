//! A request as callers write it: one object for the command line, HTTP, MCP and the Python package.
//! Unknown fields are refused by name. Nothing here is checked beyond its shape: [`admit`](crate::admit) does that.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::limits::LimitsSpec;
use crate::plan::Mount;

/// What a caller asks for. Only `language` and `code` are needed, or `command`.
#[derive(Debug, Clone, Default, Deserialize)]
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
}

/// A file for the workspace.
#[derive(Debug, Clone, Default, Deserialize)]
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
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dependencies {
    /// Whether to read imports from the code.
    pub detect: Option<bool>,
    /// Named packages.
    pub packages: Vec<String>,
}

/// What may be reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
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
