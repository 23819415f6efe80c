//! What goes over the wire, for the OpenAPI document. The types that are really read and written are the engine's and the
//! store's; a test holds the names here against theirs.

#![expect(dead_code, reason = "these types are read by the document's generator only")]

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

/// What to run: `language` and `code`, or `command`.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"language": "python", "code": "print(6 * 7)"}))]
pub(crate) struct Request {
    /// Language of the code: python, javascript, bash and so on.
    language: Option<String>,
    /// The code.
    code: Option<String>,
    /// The code, base64.
    code_base64: Option<String>,
    /// A program and its arguments, instead of language and code.
    command: Option<Vec<String>>,
    /// Where it starts; `/workspace` unless said otherwise.
    workdir: Option<String>,
    /// Given to `main`; what it returns is the result's `result`.
    arguments: Option<BTreeMap<String, Value>>,
    /// Standard input.
    stdin: Option<String>,
    /// Standard input, base64.
    stdin_base64: Option<String>,
    /// Environment.
    env: Option<BTreeMap<String, String>>,
    /// Files put into the workspace.
    files: Option<Vec<File>>,
    /// Packages.
    dependencies: Option<Dependencies>,
    /// Limits; what is absent comes from the profile.
    limits: Option<Limits>,
    /// What may be reached; nothing unless said otherwise.
    network: Option<Network>,
    /// Name of a profile.
    profile: Option<String>,
    /// Name of a policy: off, audit, balanced, strict, ragflow, or one of the configuration. What the profile and the
    /// tenant say counts as well.
    policy: Option<String>,
    /// Name of a provider.
    provider: Option<String>,
    /// Name of an image.
    image: Option<String>,
    /// Layers without which nothing may run.
    require: Option<Vec<String>>,
    /// Echoed in the result; lists can be filtered by it.
    metadata: Option<BTreeMap<String, Value>>,
    /// `false` answers with 202 and the id, before the end.
    wait: Option<bool>,
}

/// A file for the workspace.
#[derive(Serialize, ToSchema)]
pub(crate) struct File {
    /// Relative to the workspace.
    path: String,
    /// Text.
    content: Option<String>,
    /// Bytes, base64.
    content_base64: Option<String>,
    /// Permission bits, octal.
    #[schema(example = "0644")]
    mode: Option<String>,
}

/// Packages that a run needs.
#[derive(Serialize, ToSchema)]
pub(crate) struct Dependencies {
    /// Whether to read imports from the code, and lists of packages from the files.
    detect: Option<bool>,
    /// Named packages of the language's own registry; `npm:` or `pypi:` before a name says which.
    packages: Option<Vec<String>>,
}

/// Limits. Zero, negative or above the ceiling is refused.
#[derive(Serialize, ToSchema)]
pub(crate) struct Limits {
    /// Wall-clock time.
    #[schema(minimum = 1)]
    timeout_ms: Option<i64>,
    /// Memory of the whole sandbox.
    #[schema(minimum = 1)]
    memory_bytes: Option<i64>,
    /// Processor share in cores.
    cpus: Option<f64>,
    /// Everything that can be written, together.
    #[schema(minimum = 1)]
    disk_bytes: Option<i64>,
    /// Processes and threads at one time.
    #[schema(minimum = 1)]
    processes: Option<i64>,
    /// Kept of each output stream.
    #[schema(minimum = 1)]
    output_bytes: Option<i64>,
}

/// What may be reached.
#[derive(Serialize, ToSchema)]
pub(crate) struct Network {
    /// none, hosts or full.
    mode: String,
    /// For `hosts`.
    hosts: Option<Vec<String>>,
}

/// How an execution stands.
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

/// What a program did.
#[derive(Serialize, ToSchema)]
pub(crate) struct Result {
    /// Name of this run.
    id: String,
    status: Status,
    /// Null when signalled or killed.
    #[schema(required)]
    exit_code: Option<u8>,
    /// `SIGSEGV` and its kin.
    #[schema(required)]
    signal: Option<String>,
    /// The limit that ended it: memory, processes, disk or output.
    #[schema(required)]
    limit: Option<String>,
    /// Head and tail.
    stdout: String,
    /// Head and tail.
    stderr: String,
    stdout_truncated: bool,
    stderr_truncated: bool,
    /// Only where the bytes were not UTF-8.
    stdout_base64: Option<String>,
    /// Only where the bytes were not UTF-8.
    stderr_base64: Option<String>,
    result: Returned,
    artifacts: Vec<Artifact>,
    /// One line a person can act on.
    #[schema(required)]
    error: Option<String>,
    /// What was noticed before the run and during it.
    findings: Vec<Finding>,
    dependencies: Installed,
    duration_ms: f64,
    usage: Usage,
    /// What enforced it; null where nothing ran or it has not ended.
    #[schema(required)]
    receipt: Option<Receipt>,
    metadata: BTreeMap<String, Value>,
    /// In a batch: the number of the request's line, from 0.
    index: Option<u64>,
}

/// What a policy minds, or what a program was kept from.
#[derive(Serialize, ToSchema)]
pub(crate) struct Finding {
    /// A stable id.
    rule: String,
    category: String,
    severity: String,
    message: String,
    /// In the code, from 1.
    #[schema(required)]
    line: Option<u32>,
    /// In characters, from 1.
    #[schema(required)]
    column: Option<u32>,
    suggestion: String,
    /// The line of the policy, or the setting.
    decided_by: String,
}

/// What a policy says of a request.
#[derive(Serialize, ToSchema)]
pub(crate) struct Checked {
    /// passed or refused.
    status: String,
    /// Why it would not run, in one line.
    #[schema(required)]
    error: Option<String>,
    findings: Vec<Finding>,
}

/// A line of what a batch answers: what a program did, or why it was not run.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Line {
    Ran(Box<Result>),
    Refused(Refusal),
}

/// Why a line of a batch was not run.
#[derive(Serialize, ToSchema)]
pub(crate) struct Refusal {
    /// The number of the line, from 0.
    index: u64,
    error: Reason,
}

/// What `main` returned.
#[derive(Serialize, ToSchema)]
pub(crate) struct Returned {
    present: bool,
    value: Value,
}

/// A file that the program left in `./artifacts`.
#[derive(Serialize, ToSchema)]
pub(crate) struct Artifact {
    name: String,
    mime_type: String,
    size: u64,
    content_base64: String,
}

/// What was installed for the run.
#[derive(Serialize, ToSchema)]
pub(crate) struct Installed {
    /// Such as `numpy==2.1.0`, `lodash@4.17.21`.
    packages: Vec<String>,
    /// `hit`, `miss` or `none`.
    cache: String,
    install_ms: u64,
}

/// What a run used.
#[derive(Serialize, ToSchema)]
pub(crate) struct Usage {
    cpu_ms: f64,
    peak_memory_bytes: u64,
    #[schema(required)]
    processes_peak: Option<u64>,
}

/// What really enforced a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct Receipt {
    provider: String,
    kernel: String,
    isolation: Vec<String>,
    /// `"pool"`, `"fork"` or `false`.
    warm: Value,
    simulated: bool,
    /// The provider that should have served it, and was failing.
    instead_of: Option<String>,
    /// Whose machine it ran on, where that was not Belljar's: isolation is theirs then.
    service: Option<Service>,
}

/// Somebody else's machines.
#[derive(Serialize, ToSchema)]
pub(crate) struct Service {
    /// The host that was asked for one.
    host: String,
    /// What the machine was made of.
    template: String,
    /// Where it stood, if that was chosen.
    #[schema(required)]
    region: Option<String>,
}

/// It will run.
#[derive(Serialize, ToSchema)]
pub(crate) struct Accepted {
    id: String,
    status: Status,
}

/// Executions without their results.
#[derive(Serialize, ToSchema)]
pub(crate) struct ExecutionPage {
    executions: Vec<Summary>,
    #[schema(required)]
    next_cursor: Option<String>,
}

/// An execution without its result. Times are milliseconds since 1970.
#[derive(Serialize, ToSchema)]
pub(crate) struct Summary {
    id: String,
    status: Status,
    language: String,
    metadata: BTreeMap<String, Value>,
    created: i64,
    #[schema(required)]
    started: Option<i64>,
    #[schema(required)]
    ended: Option<i64>,
    #[schema(required)]
    exit_code: Option<u8>,
    cpu_ms: u64,
    size_bytes: u64,
}

/// Why a request was not served.
#[derive(Serialize, ToSchema)]
pub(crate) struct Problem {
    error: Reason,
}

/// Why.
#[derive(Serialize, ToSchema)]
pub(crate) struct Reason {
    code: Code,
    /// For people.
    message: String,
    /// By which the log knows it.
    #[schema(required)]
    request_id: Option<String>,
    /// With `refused` only: what the policy minds.
    findings: Option<Vec<Finding>>,
}

/// How the server is.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// live or ready.
    status: String,
}
