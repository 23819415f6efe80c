//! What goes over the wire, for the OpenAPI document. The types that are really read and written are the engine's and the
//! store's; a test holds the names here against theirs.

#![expect(dead_code, reason = "these types are read by the document's generator only")]

mod commands;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::Code;

pub(crate) use commands::*;

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
    /// Name of a policy.
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
    findings: Vec<Value>,
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
}

/// A sandbox to open. Nothing is needed.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewSandbox {
    /// Name of an image.
    image: Option<String>,
    /// Name of a profile.
    profile: Option<String>,
    /// Name of a provider.
    provider: Option<String>,
    /// Limits of everything in it together; `timeout_ms` is that of a command which has none of its own.
    limits: Option<Limits>,
    /// What may be reached; nothing unless said otherwise.
    network: Option<Network>,
    /// Environment of every command.
    env: Option<BTreeMap<String, String>>,
    /// Layers without which nothing may run.
    require: Option<Vec<String>>,
    /// Echoed; lists can be filtered by it.
    metadata: Option<BTreeMap<String, Value>>,
    /// How long it lives; an hour unless said otherwise.
    #[schema(minimum = 1)]
    timeout_ms: Option<i64>,
    /// kill or pause.
    on_timeout: Option<String>,
    /// Volumes of the tenant's, and host folders that the administrator allows.
    volumes: Option<Vec<VolumeMount>>,
    /// The id of a snapshot with whose files the workspace starts.
    snapshot: Option<String>,
    /// Packages that are there from the start; imports of what runs in it are not looked for.
    dependencies: Option<Dependencies>,
}

/// A volume that a sandbox sees, or a host folder.
#[derive(Serialize, ToSchema)]
pub(crate) struct VolumeMount {
    /// The name of a volume.
    name: Option<String>,
    /// Or the name of a host folder.
    host: Option<String>,
    /// Where it is seen, absolute.
    path: String,
    read_only: Option<bool>,
}

/// A volume to make.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewVolume {
    name: String,
    #[schema(minimum = 1)]
    size_bytes: u64,
}

/// A named place that outlives sandboxes.
#[derive(Serialize, ToSchema)]
pub(crate) struct Volume {
    name: String,
    /// What it may hold. Sandboxes that write more to it are halted until some of it is removed.
    size_bytes: u64,
    /// What it was last seen to hold; null where nobody has looked, or it could not be measured.
    #[schema(required)]
    used_bytes: Option<u64>,
    created: i64,
}

/// Volumes by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct VolumeList {
    volumes: Vec<Volume>,
}

/// A snapshot to make.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewSnapshot {
    label: Option<String>,
}

/// The files of a sandbox, as they were.
#[derive(Serialize, ToSchema)]
pub(crate) struct Snapshot {
    id: String,
    /// What it was made from.
    sandbox: String,
    label: String,
    size_bytes: u64,
    created: i64,
    /// When it was complete; null while it is being made.
    #[schema(required)]
    ready: Option<i64>,
}

/// Snapshots, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct SnapshotList {
    snapshots: Vec<Snapshot>,
}

/// How long a sandbox is to live from now on.
#[derive(Serialize, ToSchema)]
pub(crate) struct Extension {
    #[schema(minimum = 1)]
    timeout_ms: i64,
}

/// How a sandbox stands.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SandboxState {
    Starting,
    Running,
    Paused,
    Ended,
}

/// A sandbox. Times are milliseconds since 1970.
#[derive(Serialize, ToSchema)]
pub(crate) struct Sandbox {
    id: String,
    state: SandboxState,
    image: String,
    profile: String,
    limits: Limits,
    network: Network,
    /// Names of the variables that every command has; their values are not kept.
    env_names: Vec<String>,
    volumes: Vec<VolumeMount>,
    /// Packages that were there from the start.
    dependencies: Installed,
    timeout_ms: u64,
    /// kill or pause.
    on_timeout: String,
    /// What enforces it; null where it was never made.
    #[schema(required)]
    receipt: Option<Receipt>,
    metadata: BTreeMap<String, Value>,
    created: i64,
    changed: i64,
    /// When its time is over; null while it is paused.
    #[schema(required)]
    expires: Option<i64>,
    #[schema(required)]
    ended: Option<i64>,
    /// closed, expired, idle, failed or interrupted.
    #[schema(required)]
    ended_because: Option<String>,
}

/// Sandboxes, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct SandboxPage {
    sandboxes: Vec<Sandbox>,
    #[schema(required)]
    next_cursor: Option<String>,
}

/// What a sandbox uses now.
#[derive(Serialize, ToSchema)]
pub(crate) struct Stats {
    #[schema(required)]
    cpu_ms: Option<u64>,
    #[schema(required)]
    memory_bytes: Option<u64>,
    #[schema(required)]
    peak_memory_bytes: Option<u64>,
    #[schema(required)]
    processes: Option<u64>,
    #[schema(required)]
    peak_processes: Option<u64>,
    #[schema(required)]
    disk_bytes: Option<u64>,
    /// What executions and commands wrote that are still remembered; null while it is paused.
    #[schema(required)]
    output_bytes: Option<u64>,
    memory_kills: u64,
    forks_refused: u64,
    disk_full: bool,
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
}

/// How the server is.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// live or ready.
    status: String,
}

/// What a tenant may have; null is the server's own default.
#[derive(Serialize, ToSchema)]
pub(crate) struct Quotas {
    concurrency: Option<u32>,
    sandboxes: Option<u32>,
    cpu_seconds_per_day: Option<u64>,
    memory_bytes: Option<u64>,
    disk_bytes: Option<u64>,
}

/// A tenant.
#[derive(Serialize, ToSchema)]
pub(crate) struct Tenant {
    name: String,
    quotas: Quotas,
    created: i64,
    #[schema(required)]
    disabled: Option<i64>,
    stored_bytes: u64,
}

/// Tenants by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct TenantList {
    tenants: Vec<Tenant>,
}

/// A tenant to add.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"name": "ada", "quotas": {"concurrency": 4}}))]
pub(crate) struct NewTenant {
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]*$", max_length = 63)]
    name: String,
    quotas: Option<Quotas>,
}

/// What to change about a tenant.
#[derive(Serialize, ToSchema)]
pub(crate) struct TenantChange {
    quotas: Option<Quotas>,
    disabled: Option<bool>,
}

/// A key to make.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewKey {
    /// What it is for.
    label: Option<String>,
    /// The first two unless said otherwise.
    scopes: Option<Vec<Scope>>,
    expires_in_seconds: Option<u64>,
}

/// What a key opens.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    Run,
    Sandboxes,
    Admin,
}

/// How to rotate a key.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyRotation {
    /// How long the old one still opens; not at all unless said otherwise.
    old_valid_seconds: Option<u64>,
}

/// What may be known of a key.
#[derive(Serialize, ToSchema)]
pub(crate) struct Key {
    id: String,
    tenant: String,
    label: String,
    scopes: Vec<Scope>,
    created: i64,
    #[schema(required)]
    expires: Option<i64>,
    #[schema(required)]
    last_used: Option<i64>,
    #[schema(required)]
    revoked: Option<i64>,
}

/// A key, this once.
#[derive(Serialize, ToSchema)]
pub(crate) struct ShownKey {
    key: String,
    record: Key,
}

/// Keys of a tenant.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyList {
    keys: Vec<Key>,
}

/// Named limits, network and environment.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"limits": {"timeout_ms": 1000}, "output_overflow": "kill"}))]
pub(crate) struct Profile {
    limits: Option<Limits>,
    network: Option<Network>,
    env: Option<BTreeMap<String, String>>,
    preimports: Option<Vec<String>>,
    /// truncate or kill.
    output_overflow: Option<String>,
}

/// A profile and its name.
#[derive(Serialize, ToSchema)]
pub(crate) struct StoredProfile {
    name: String,
    profile: Profile,
    changed: Option<i64>,
}

/// Profiles by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProfileList {
    profiles: Vec<StoredProfile>,
}

/// Entries of the audit log, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditPage {
    entries: Vec<AuditEntry>,
    #[schema(required)]
    next_cursor: Option<i64>,
}

/// Who did what.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditEntry {
    seq: i64,
    at: i64,
    actor: String,
    tenant: Option<String>,
    action: String,
    target: Option<String>,
    /// done, refused or failed.
    outcome: String,
    request_id: Option<String>,
    detail: Option<String>,
}
