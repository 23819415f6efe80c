//! What tools take. The comments are what models read.

use belljar_engine::language::LANGUAGES;
use belljar_engine::limits::LimitsSpec;
use belljar_engine::request::{Dependencies, FileSpec, Request};
use belljar_engine::sandbox::SandboxRequest;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

fn languages() -> Vec<&'static str> {
    LANGUAGES.iter().map(|language| language.name).collect()
}

/// `run_code`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCode {
    /// Language of the code.
    #[schemars(extend("enum" = languages()))]
    pub(crate) language: String,
    /// The whole program. Print what you want to see; save images and other files for the user below ./artifacts.
    pub(crate) code: String,
    /// Keyword arguments: when given, the function main of the code is called with them, and what it returns is in the
    /// result.
    pub(crate) arguments: Option<Map<String, Value>>,
    /// Packages to install first, such as "pandas" or "lodash@4". What the code imports is found by itself: name only what
    /// is not, or a version.
    pub(crate) dependencies: Option<Vec<String>>,
    /// Files to put into the working folder first.
    pub(crate) files: Option<Vec<File>>,
    /// What the program reads from standard input.
    pub(crate) stdin: Option<String>,
    /// How long it may run, in milliseconds (usually 30000).
    pub(crate) timeout_ms: Option<i64>,
    /// A sandbox from sandbox_open to run in, whose files stay. Without, it runs in a fresh one that is gone afterwards.
    pub(crate) sandbox: Option<String>,
}

/// `run_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCommand {
    /// A line of Bash, or several.
    pub(crate) command: String,
    /// Files to put into the working folder first.
    pub(crate) files: Option<Vec<File>>,
    /// What it reads from standard input.
    pub(crate) stdin: Option<String>,
    /// The folder in which it starts (usually /workspace).
    pub(crate) workdir: Option<String>,
    /// How long it may run, in milliseconds (usually 30000).
    pub(crate) timeout_ms: Option<i64>,
    /// A sandbox from sandbox_open to run in, whose files stay. Without, it runs in a fresh one that is gone afterwards.
    pub(crate) sandbox: Option<String>,
}

/// A file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// Relative to the working folder.
    pub(crate) path: String,
    /// Text.
    pub(crate) content: Option<String>,
    /// Or bytes, base64.
    pub(crate) content_base64: Option<String>,
}

/// `sandbox_open`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SandboxOpen {
    /// Python packages that everything in it can import.
    pub(crate) dependencies: Option<Vec<String>>,
    /// How long it lives, in milliseconds (usually 3600000).
    pub(crate) timeout_ms: Option<i64>,
}

/// `sandbox_close`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SandboxClose {
    /// The sandbox.
    pub(crate) sandbox: String,
}

/// `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadFile {
    /// The sandbox.
    pub(crate) sandbox: String,
    /// Absolute, or relative to /workspace.
    pub(crate) path: String,
    /// The byte to begin with (usually 0).
    pub(crate) offset: Option<u64>,
}

/// `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteFile {
    /// The sandbox.
    pub(crate) sandbox: String,
    /// Absolute, or relative to /workspace. Missing folders are made.
    pub(crate) path: String,
    /// Text; replaces what is there.
    pub(crate) content: Option<String>,
    /// Or bytes, base64.
    pub(crate) content_base64: Option<String>,
}

/// `list_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListFiles {
    /// The sandbox.
    pub(crate) sandbox: String,
    /// A folder, absolute or relative to /workspace (usually /workspace itself).
    pub(crate) path: Option<String>,
}

/// `check_code`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckCode {
    /// Language of the code.
    #[schemars(extend("enum" = languages()))]
    pub(crate) language: String,
    /// The code.
    pub(crate) code: String,
}

impl RunCode {
    pub(crate) fn into_request(self) -> (Request, Option<String>) {
        let request = Request {
            language: Some(self.language),
            code: Some(self.code),
            arguments: self.arguments,
            dependencies: packages(self.dependencies),
            files: files(self.files),
            stdin: self.stdin,
            limits: LimitsSpec { timeout_ms: self.timeout_ms, ..LimitsSpec::default() },
            ..Request::default()
        };
        (request, self.sandbox)
    }
}

impl RunCommand {
    /// As Bash, so that it is read like code.
    pub(crate) fn into_request(self) -> (Request, Option<String>) {
        let request = Request {
            language: Some("bash".to_owned()),
            code: Some(self.command),
            files: files(self.files),
            stdin: self.stdin,
            workdir: self.workdir,
            limits: LimitsSpec { timeout_ms: self.timeout_ms, ..LimitsSpec::default() },
            ..Request::default()
        };
        (request, self.sandbox)
    }
}

impl SandboxOpen {
    pub(crate) fn into_request(self) -> SandboxRequest {
        let dependencies = packages(self.dependencies);
        SandboxRequest { dependencies, timeout_ms: self.timeout_ms, ..SandboxRequest::default() }
    }
}

impl CheckCode {
    pub(crate) fn into_request(self) -> Request {
        Request { language: Some(self.language), code: Some(self.code), ..Request::default() }
    }
}

fn packages(named: Option<Vec<String>>) -> Dependencies {
    Dependencies { detect: None, packages: named.unwrap_or_default() }
}

fn files(given: Option<Vec<File>>) -> Vec<FileSpec> {
    let spec = |file: File| FileSpec {
        path: file.path,
        content: file.content,
        content_base64: file.content_base64,
        mode: None,
    };
    given.unwrap_or_default().into_iter().map(spec).collect()
}
