//! Inputs of the tools. The field comments are the descriptions that models read.

use belljar_engine::json_text::{Arguments, has_rounded_integer};
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

/// Input of `run_code`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCode {
    /// Language of the code.
    #[schemars(extend("enum" = languages()))]
    pub(crate) language: String,
    /// The whole program. Print what you want to see; save images and other files for the user below
    /// ./artifacts.
    pub(crate) code: String,
    /// Keyword arguments. If given, the code's function main is called with them, and its return value is in
    /// the result.
    pub(crate) arguments: Option<Map<String, Value>>,
    /// Packages to install first, e.g. "pandas" or "lodash@4". Imports of the code are detected
    /// automatically: only name packages that are not imported, or that need a version.
    pub(crate) dependencies: Option<Vec<String>>,
    /// Files to write to the working folder first.
    pub(crate) files: Option<Vec<ToolFile>>,
    /// Standard input of the program.
    pub(crate) stdin: Option<String>,
    /// Timeout in milliseconds (default 30000).
    pub(crate) timeout_ms: Option<i64>,
    /// Id of a sandbox from sandbox_open to run in; its files persist. Without it, a fresh sandbox is used
    /// and discarded.
    pub(crate) sandbox: Option<String>,
}

/// Input of `run_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCommand {
    /// One or more lines of Bash.
    pub(crate) command: String,
    /// Files to write to the working folder first.
    pub(crate) files: Option<Vec<ToolFile>>,
    /// Standard input of the command.
    pub(crate) stdin: Option<String>,
    /// Working folder (default /workspace).
    pub(crate) workdir: Option<String>,
    /// Timeout in milliseconds (default 30000).
    pub(crate) timeout_ms: Option<i64>,
    /// Id of a sandbox from sandbox_open to run in; its files persist. Without it, a fresh sandbox is used
    /// and discarded.
    pub(crate) sandbox: Option<String>,
}

/// A file to write to the working folder.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolFile {
    /// Path relative to the working folder.
    pub(crate) path: String,
    /// Content as text.
    pub(crate) content: Option<String>,
    /// Content in base64, instead of content.
    pub(crate) content_base64: Option<String>,
}

/// Input of `sandbox_open`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SandboxOpen {
    /// Packages to install in the sandbox at the start. Imports of code that runs in it later are detected.
    pub(crate) dependencies: Option<Vec<String>>,
    /// How long it may be unused, in milliseconds (default 3600000).
    pub(crate) timeout_ms: Option<i64>,
}

/// Input of `sandbox_close`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SandboxClose {
    /// Id of the sandbox.
    pub(crate) sandbox: String,
}

/// Input of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadFile {
    /// Id of the sandbox.
    pub(crate) sandbox: String,
    /// Path of the file, absolute or relative to /workspace.
    pub(crate) path: String,
    /// Offset of the first byte to read (default 0).
    pub(crate) offset: Option<u64>,
}

/// Input of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteFile {
    /// Id of the sandbox.
    pub(crate) sandbox: String,
    /// Path of the file, absolute or relative to /workspace. Missing folders are created.
    pub(crate) path: String,
    /// Content as text; replaces an existing file.
    pub(crate) content: Option<String>,
    /// Content in base64, instead of content.
    pub(crate) content_base64: Option<String>,
}

/// Input of `list_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListFiles {
    /// Id of the sandbox.
    pub(crate) sandbox: String,
    /// Path of the folder, absolute or relative to /workspace (default /workspace).
    pub(crate) path: Option<String>,
}

/// Input of `check_code`.
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
    pub(crate) fn into_request(self) -> Result<(Request, Option<String>), String> {
        let request = Request {
            language: Some(self.language),
            code: Some(self.code),
            arguments: self.arguments.map(exact_arguments).transpose()?,
            dependencies: packages(self.dependencies),
            files: files(self.files),
            stdin: self.stdin,
            limits: LimitsSpec { timeout_ms: self.timeout_ms, ..LimitsSpec::default() },
            ..Request::default()
        };
        Ok((request, self.sandbox))
    }
}

/// Converts arguments that were parsed already. A parser rounds integers beyond 64 bits, so they are refused.
fn exact_arguments(arguments: Map<String, Value>) -> Result<Arguments, String> {
    if let Some((name, _)) = arguments.iter().find(|(_, value)| has_rounded_integer(value)) {
        return Err(format!("arguments.{name}: has an integer beyond 64 bits; pass it as a string"));
    }
    serde_json::from_value(Value::Object(arguments)).map_err(|error| error.to_string())
}

impl RunCommand {
    /// Converts to a request to run Bash code, so that policies check it like code.
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

fn files(given: Option<Vec<ToolFile>>) -> Vec<FileSpec> {
    let spec = |file: ToolFile| FileSpec {
        path: file.path,
        content: file.content,
        content_base64: file.content_base64,
        mode: None,
    };
    given.unwrap_or_default().into_iter().map(spec).collect()
}
