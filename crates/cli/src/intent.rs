//! Interprets arguments and environment as a request, the host's paths and output options. Checks only what
//! needs this machine (files, variables, JSON); admission checks the rest.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::admit::parse_mount;
use belljar_engine::json_text::Arguments;
use belljar_engine::limits::LimitsSpec;
use belljar_engine::request::{Dependencies, HostPaths, NetworkSpec, Request};
use serde::de::IgnoredAny;

use crate::artifacts::ArtifactFolder;
use crate::env::Environment;
use crate::error::{CliError, quote_path};
use crate::run_args::{LimitArgs, RunArgs};
use crate::{image, input, language};

/// A run as the caller intends it.
#[derive(Debug)]
pub(crate) struct Intent {
    pub(crate) request: Request,
    pub(crate) paths: HostPaths,
    pub(crate) output: OutputOptions,
    /// Where to save artifacts.
    pub(crate) artifacts: Option<ArtifactFolder>,
}

/// How the result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputOptions {
    pub(crate) form: OutputForm,
    /// Whether to print nothing of belljar's own beside the output.
    pub(crate) quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputForm {
    /// The result object, once, at the end.
    Json,
    /// Output as it arrives, escaped for a terminal.
    Live,
    /// Output as it arrives, unchanged.
    Raw,
}

impl Intent {
    /// Reads everything that the arguments name.
    pub(crate) fn from_args(args: RunArgs, environment: &Environment) -> Result<Self, CliError> {
        refuse_stdin_twice(&args)?;
        let output = OutputOptions { form: form(&args), quiet: args.quiet };
        let mut request = Request {
            arguments: args.arguments.as_deref().map(parse_arguments).transpose()?,
            files: input::files(&args.files)?,
            dependencies: Dependencies { detect: args.no_deps.then_some(false), packages: args.packages },
            limits: limits(&args.limits).or(&environment.limits),
            network: args.network.as_deref().map(parse_network),
            gpus: args.gpus,
            profile: args.profile.or_else(|| environment.profile.clone()),
            policy: args.policy,
            provider: args.provider,
            require: args.require,
            workdir: args.workdir,
            ..Request::default()
        };
        for variable in &args.variables {
            let (key, value) = parse_variable(variable)?;
            request.env.insert(key, value);
        }
        if let Some(path) = &args.stdin {
            (request.stdin, request.stdin_base64) = text_or_base64(input::stdin(path)?);
        }
        let mounts = args.mounts.iter().map(|text| parse_mount(text)).collect::<Result<_, _>>()?;
        let mut paths = HostPaths { host_workspace: args.workspace, mounts, ..HostPaths::default() };
        if let Some(image) = &args.image {
            image::set_image(image, &mut request, &mut paths)?;
        }
        match (args.source, args.code, args.command) {
            (Some(path), None, command) if command.is_empty() => {
                add_file(&path, args.language, &mut request, &mut paths)?;
            }
            (None, Some(code), command) if command.is_empty() => {
                add_inline(code, args.language, &mut request)
            }
            (None, None, command) if !command.is_empty() => {
                (request.command, request.language) = (Some(command), args.language);
            }
            // Each line of a batch names its own code.
            (None, None, _) if args.batch.is_some() => request.language = args.language,
            (None, None, _) => return Err(CliError::invalid(NOTHING_TO_RUN)),
            _ => return Err(CliError::invalid("use only one of FILE, -c CODE and -- CMD")),
        }
        let artifacts = args.artifacts.as_deref().map(ArtifactFolder::open).transpose()?;
        Ok(Self { request, paths, output, artifacts })
    }
}

const NOTHING_TO_RUN: &str =
    "nothing to run: pass a FILE, '-' for standard input, -c CODE, or -- CMD; see belljar run --help";

fn refuse_stdin_twice(args: &RunArgs) -> Result<(), CliError> {
    let is_stdin = |path: &Option<_>| path.as_deref().is_some_and(input::is_stdin);
    let others = [("--stdin", &args.stdin), ("--batch", &args.batch), ("--inputs", &args.inputs)];
    if is_stdin(&args.stdin) && is_stdin(&args.inputs) {
        return Err(CliError::invalid(
            "--inputs: standard input is already used for --stdin; use a file here",
        ));
    }
    for (flag, path) in others {
        if is_stdin(&args.source) && is_stdin(path) {
            return Err(CliError::invalid(format!(
                "{flag}: standard input is already used for the code; use a file here"
            )));
        }
    }
    Ok(())
}

fn form(args: &RunArgs) -> OutputForm {
    match (args.json, args.raw) {
        (true, _) => OutputForm::Json,
        (false, true) => OutputForm::Raw,
        (false, false) => OutputForm::Live,
    }
}

fn add_file(
    path: &Path,
    given: Option<String>,
    request: &mut Request,
    paths: &mut HostPaths,
) -> Result<(), CliError> {
    let code = input::code(path)?;
    let language = given.or_else(|| language::detect(path, &code).map(|language| language.name.to_owned()));
    request.language = Some(language.ok_or_else(|| {
        let name = if input::is_stdin(path) { "standard input".to_owned() } else { quote_path(path) };
        CliError::invalid(format!(
            "cannot tell the language of {name}; add --language, for example --language python"
        ))
    })?);
    (request.code, request.code_base64) = text_or_base64(code);
    if !input::is_stdin(path) {
        paths.source_name = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        paths.source_in_workspace =
            paths.host_workspace.as_deref().and_then(|folder| path_below(path, folder));
    }
    Ok(())
}

fn add_inline(code: OsString, language: Option<String>, request: &mut Request) {
    request.language = Some(language.unwrap_or_else(|| "python".to_owned()));
    (request.code, request.code_base64) = text_or_base64(code.into_encoded_bytes());
}

/// Returns a file's path below a folder, with links resolved. A file elsewhere, or with a non-UTF-8 path, is
/// copied.
fn path_below(path: &Path, folder: &Path) -> Option<String> {
    let (path, folder) = (fs::canonicalize(path).ok()?, fs::canonicalize(folder).ok()?);
    path.strip_prefix(folder).ok()?.to_str().map(str::to_owned)
}

/// Encodes bytes that are not UTF-8 as base64, so that admission reports what is wrong with them, if
/// anything.
fn text_or_base64(bytes: Vec<u8>) -> (Option<String>, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(error) => (None, Some(STANDARD.encode(error.as_bytes()))),
    }
}

fn parse_arguments(text: &str) -> Result<Arguments, CliError> {
    let kind = match text.trim_ascii_start().as_bytes().first() {
        Some(b'n') => "null",
        Some(b't' | b'f') => "a boolean",
        Some(b'-' | b'0'..=b'9') => "a number",
        Some(b'"') => "a string",
        Some(b'[') => "a list",
        _ => {
            return serde_json::from_str(text).map_err(|error| {
                let what = if error.is_data() { "" } else { "not JSON: " };
                CliError::invalid(format!("--args: {what}{error}"))
            });
        }
    };
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        return Err(CliError::invalid(format!("--args: not JSON: {error}")));
    }
    Err(CliError::invalid(format!("--args: must be a JSON object such as {{\"name\": \"Ada\"}}, not {kind}")))
}

/// Parses `K=V`, or `K` with its value in this process's environment.
pub(crate) fn parse_variable(text: &str) -> Result<(String, String), CliError> {
    if let Some((key, value)) = text.split_once('=') {
        return Ok((key.to_owned(), value.to_owned()));
    }
    match std::env::var(text) {
        Ok(value) => Ok((text.to_owned(), value)),
        Err(std::env::VarError::NotPresent) => Err(CliError::invalid(format!(
            "--env: {text} is not set in this shell, so it has no value to copy; use --env {text}=VALUE"
        ))),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(CliError::invalid(format!("--env: the value of {text} is not UTF-8")))
        }
    }
}

/// Parses `none`, `internet`, `full`, or a comma-separated list of hosts.
pub(crate) fn parse_network(text: &str) -> NetworkSpec {
    match text {
        mode if NetworkSpec::PLAIN_MODES.contains(&mode) => NetworkSpec::plain(mode),
        hosts => NetworkSpec {
            mode: "hosts".to_owned(),
            hosts: hosts.split(',').map(|host| host.trim().to_owned()).collect(),
        },
    }
}

fn limits(args: &LimitArgs) -> LimitsSpec {
    LimitsSpec {
        timeout_ms: args.timeout,
        memory_bytes: args.memory,
        cpus: args.cpus,
        disk_bytes: args.disk,
        processes: args.processes,
        output_bytes: args.output,
    }
}

#[cfg(test)]
#[path = "intent_tests.rs"]
mod tests;
