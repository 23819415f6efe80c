//! Request and response types for the OpenAPI document. The types that are actually parsed and serialized
//! belong to the engine and the store; tests compare the field names.

#![expect(dead_code, reason = "these types are only used to generate the OpenAPI document")]

mod administration;
mod commands;
mod files;
mod places;
mod providers;
mod sandboxes;
mod tools;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::Code;

pub(crate) use administration::*;
pub(crate) use commands::*;
pub(crate) use files::*;
pub(crate) use places::*;
pub(crate) use providers::*;
pub(crate) use sandboxes::*;
pub(crate) use tools::*;

/// A program to run: `language` and `code`, or `command`.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"language": "python", "code": "print(6 * 7)"}))]
pub(crate) struct Request {
    /// Language of the code: python, javascript, bash and so on.
    language: Option<String>,
    /// Source code.
    code: Option<String>,
    /// Source code in base64, instead of `code`.
    code_base64: Option<String>,
    /// Program and arguments to run, instead of `language` and `code`.
    command: Option<Vec<String>>,
    /// Working directory; default `/workspace`.
    workdir: Option<String>,
    /// Arguments for the function `main`, whose return value becomes the result's `result`.
    arguments: Option<BTreeMap<String, Value>>,
    /// Standard input.
    stdin: Option<String>,
    /// Standard input in base64, instead of `stdin`.
    stdin_base64: Option<String>,
    /// Environment variables.
    env: Option<BTreeMap<String, String>>,
    /// Files to create in the workspace.
    files: Option<Vec<File>>,
    /// Packages to install.
    dependencies: Option<Dependencies>,
    /// Resource limits; absent ones come from the profile.
    limits: Option<Limits>,
    /// Network access; none by default.
    network: Option<Network>,
    /// Name of the profile.
    profile: Option<String>,
    /// Name of the policy: off, audit, balanced, strict, ragflow, or one from the configuration. The policies
    /// of the profile and of the tenant apply as well.
    policy: Option<String>,
    /// Name of the provider that runs it.
    provider: Option<String>,
    /// Name of the image.
    image: Option<String>,
    /// Isolation layers that must be enforced, or nothing runs.
    require: Option<Vec<String>>,
    /// Values echoed in the result. Lists can be filtered by them.
    metadata: Option<BTreeMap<String, Value>>,
    /// Whether to wait for the end; `false` answers 202 with the id at once.
    wait: Option<bool>,
}

/// A file to create in the workspace.
#[derive(Serialize, ToSchema)]
pub(crate) struct File {
    /// Path relative to the workspace.
    path: String,
    /// Content of the file as text.
    content: Option<String>,
    /// Content of the file in base64, instead of `content`.
    content_base64: Option<String>,
    /// Permission bits in octal.
    #[schema(example = "0644")]
    mode: Option<String>,
}

/// Packages needed by the code.
#[derive(Serialize, ToSchema)]
pub(crate) struct Dependencies {
    /// Whether to detect packages from imports in the code and from requirement files.
    detect: Option<bool>,
    /// Packages from the registry of the code's language. The prefixes `npm:` and `pypi:` name another
    /// registry.
    packages: Option<Vec<String>>,
}

/// Resource limits. A value that is zero, negative or above the ceiling is refused.
#[derive(Serialize, ToSchema)]
pub(crate) struct Limits {
    /// Wall-clock time in milliseconds.
    #[schema(minimum = 1)]
    timeout_ms: Option<i64>,
    /// Memory of the whole sandbox in bytes.
    #[schema(minimum = 1)]
    memory_bytes: Option<i64>,
    /// CPU share in cores.
    cpus: Option<f64>,
    /// Total size of all written files in bytes.
    #[schema(minimum = 1)]
    disk_bytes: Option<i64>,
    /// Maximum number of processes and threads.
    #[schema(minimum = 1)]
    processes: Option<i64>,
    /// Bytes kept of each output stream.
    #[schema(minimum = 1)]
    output_bytes: Option<i64>,
}

/// Network access.
#[derive(Serialize, ToSchema)]
pub(crate) struct Network {
    /// Access mode: none, hosts or full.
    mode: String,
    /// Allowed hosts, for the mode `hosts`.
    hosts: Option<Vec<String>>,
}

/// Status of an execution.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Queued,
    Running,
    Succeeded,
    Failed,
    TimedOut,
    LimitExceeded,
    Refused,
    Cancelled,
    Interrupted,
}

/// Result of an execution.
#[derive(Serialize, ToSchema)]
pub(crate) struct Result {
    /// Execution id.
    id: String,
    /// Outcome of the program, or `queued` or `running`.
    status: Status,
    /// Exit code; null if the program was killed by a signal or did not run.
    #[schema(required)]
    exit_code: Option<u8>,
    /// Name of the signal that killed the program, such as `SIGSEGV`.
    #[schema(required)]
    signal: Option<String>,
    /// Limit that ended the program: memory, processes, disk or output.
    #[schema(required)]
    limit: Option<String>,
    /// Standard output; the middle is left out if it exceeds the limit.
    stdout: String,
    /// Standard error; the middle is left out if it exceeds the limit.
    stderr: String,
    /// Whether a part of `stdout` is left out.
    stdout_truncated: bool,
    /// Whether a part of `stderr` is left out.
    stderr_truncated: bool,
    /// Standard output in base64; only present if it is not UTF-8.
    stdout_base64: Option<String>,
    /// Standard error in base64; only present if it is not UTF-8.
    stderr_base64: Option<String>,
    /// Return value of `main`.
    result: Returned,
    /// Files that the program left in `./artifacts`.
    artifacts: Vec<Artifact>,
    /// Reason for the failure in one line; null on success.
    #[schema(required)]
    error: Option<String>,
    /// Findings of the policy and of the run.
    findings: Vec<Finding>,
    /// Packages that were installed.
    dependencies: Installed,
    /// Wall-clock time of the program in milliseconds.
    duration_ms: f64,
    /// Resources that the program used.
    usage: Usage,
    /// Isolation that was enforced; null if nothing ran, and until the execution ends.
    #[schema(required)]
    receipt: Option<Receipt>,
    /// Metadata of the request.
    metadata: BTreeMap<String, Value>,
    /// In a batch: line number of the request, from 0.
    index: Option<u64>,
}

/// A finding: a policy violation, or something the sandbox denied to the program.
#[derive(Serialize, ToSchema)]
pub(crate) struct Finding {
    /// Stable id of the rule.
    rule: String,
    /// Category of the rule.
    category: String,
    /// Severity of the finding.
    severity: String,
    /// Description of the finding.
    message: String,
    /// Line in the code, from 1.
    #[schema(required)]
    line: Option<u32>,
    /// Column in characters, from 1.
    #[schema(required)]
    column: Option<u32>,
    /// How to fix it.
    suggestion: String,
    /// Line of the policy or setting that decided it.
    decided_by: String,
}

/// Result of a policy check.
#[derive(Serialize, ToSchema)]
pub(crate) struct Checked {
    /// Verdict: passed or refused.
    status: String,
    /// Reason for the refusal in one line; null if it passed.
    #[schema(required)]
    error: Option<String>,
    /// Findings of the policy.
    findings: Vec<Finding>,
}

/// A line of a batch's response: a result, or the reason the request was refused.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Line {
    Ran(Box<Result>),
    Refused(Refusal),
}

/// A request of a batch that was not run.
#[derive(Serialize, ToSchema)]
pub(crate) struct Refusal {
    /// Line number of the request, from 0.
    index: u64,
    /// Reason it was not run.
    error: Reason,
}

/// Return value of `main`.
#[derive(Serialize, ToSchema)]
pub(crate) struct Returned {
    /// Whether `main` was called and returned.
    present: bool,
    /// The returned value; null if absent.
    value: Value,
}

/// A file that the program left in `./artifacts`.
#[derive(Serialize, ToSchema)]
pub(crate) struct Artifact {
    /// File name.
    name: String,
    /// MIME type, detected from the file.
    mime_type: String,
    /// Size in bytes.
    size: u64,
    /// Content in base64.
    content_base64: String,
}

/// Packages installed for a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct Installed {
    /// Names with versions, such as `numpy==2.1.0` or `lodash@4.17.21`.
    packages: Vec<String>,
    /// Whether the packages were cached: `hit`, `miss` or `none`.
    cache: String,
    /// Time spent installing in milliseconds.
    install_ms: u64,
}

/// Resources used by a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct Usage {
    /// CPU time in milliseconds.
    cpu_ms: f64,
    /// Peak memory in bytes.
    peak_memory_bytes: u64,
    /// Peak number of processes; null if unknown.
    #[schema(required)]
    processes_peak: Option<u64>,
}

/// Isolation that was enforced for a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct Receipt {
    /// Name of the provider.
    provider: String,
    /// Kernel the program ran on: `host`, `gvisor` or `remote`.
    kernel: String,
    /// Isolation layers that were enforced.
    isolation: Vec<String>,
    /// How the sandbox was started: `"pool"` or `"fork"`, or `false` for a cold start.
    warm: Value,
    /// Whether isolation was only simulated.
    simulated: bool,
    /// Provider that should have run it, but was failing.
    instead_of: Option<String>,
    /// Remote service that ran it; isolation is then the service's responsibility.
    service: Option<Service>,
}

/// A remote service that runs sandboxes on its own machines.
#[derive(Serialize, ToSchema)]
pub(crate) struct Service {
    /// Host of the service's API.
    host: String,
    /// Template the machine was created from.
    template: String,
    /// Region of the machine, if one was chosen.
    #[schema(required)]
    region: Option<String>,
}

/// An accepted execution.
#[derive(Serialize, ToSchema)]
pub(crate) struct Accepted {
    /// Execution id.
    id: String,
    /// Status of the execution, `queued`.
    status: Status,
}

/// A page of executions, without their results.
#[derive(Serialize, ToSchema)]
pub(crate) struct ExecutionPage {
    /// Executions, newest first.
    executions: Vec<Summary>,
    /// Cursor of the next page; null on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// An execution without its result. Times are in milliseconds since 1970.
#[derive(Serialize, ToSchema)]
pub(crate) struct Summary {
    /// Execution id.
    id: String,
    /// Status of the execution.
    status: Status,
    /// Language of the code, or `command`.
    language: String,
    /// Metadata of the request.
    metadata: BTreeMap<String, Value>,
    /// Creation time.
    created: i64,
    /// Start time; null while queued.
    #[schema(required)]
    started: Option<i64>,
    /// End time; null until it ends.
    #[schema(required)]
    ended: Option<i64>,
    /// Exit code; null until the end, or if the program was killed by a signal.
    #[schema(required)]
    exit_code: Option<u8>,
    /// CPU time in milliseconds.
    cpu_ms: u64,
    /// Size of the stored result in bytes.
    size_bytes: u64,
}

/// Error response.
#[derive(Serialize, ToSchema)]
pub(crate) struct Problem {
    /// Reason the request failed.
    error: Reason,
}

/// Reason a request failed.
#[derive(Serialize, ToSchema)]
pub(crate) struct Reason {
    /// Machine-readable code.
    code: Code,
    /// Description for people.
    message: String,
    /// Request id for finding the error in the server's log.
    #[schema(required)]
    request_id: Option<String>,
    /// Findings of the policy; only with the code `refused`.
    findings: Option<Vec<Finding>>,
}

/// Health of the server.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// Health status: live or ready.
    status: String,
}
