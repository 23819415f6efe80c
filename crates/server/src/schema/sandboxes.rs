//! Sandboxes.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{Dependencies, Installed, Limits, Network, Receipt};

/// A sandbox to create. All fields are optional.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewSandbox {
    /// Name of the image.
    image: Option<String>,
    /// Name of the profile.
    profile: Option<String>,
    /// Name of the provider.
    provider: Option<String>,
    /// Limits of the whole sandbox. `timeout_ms` is the default timeout of a command.
    limits: Option<Limits>,
    /// Network access; none by default.
    network: Option<Network>,
    /// Environment variables of every command.
    env: Option<BTreeMap<String, String>>,
    /// Isolation layers that must be enforced, or nothing runs.
    require: Option<Vec<String>>,
    /// Values echoed in responses. Lists can be filtered by them.
    metadata: Option<BTreeMap<String, Value>>,
    /// Lifetime in milliseconds; default one hour.
    #[schema(minimum = 1)]
    timeout_ms: Option<i64>,
    /// Action when the lifetime ends: kill or pause.
    on_timeout: Option<String>,
    /// Volumes of the tenant, and host folders that the administrator allows.
    volumes: Option<Vec<VolumeMount>>,
    /// Id of a snapshot whose files the workspace starts with.
    snapshot: Option<String>,
    /// Packages to install at the start. Imports of code that runs later are not detected.
    dependencies: Option<Dependencies>,
    /// Name of the policy for everything that runs in the sandbox.
    policy: Option<String>,
}

/// A volume or host folder mounted in a sandbox.
#[derive(Serialize, ToSchema)]
pub(crate) struct VolumeMount {
    /// Name of the volume.
    name: Option<String>,
    /// Name of the host folder, instead of a volume.
    host: Option<String>,
    /// Absolute path of the mount in the sandbox.
    path: String,
    /// Whether the mount is read-only.
    read_only: Option<bool>,
}

/// New lifetime of a sandbox.
#[derive(Serialize, ToSchema)]
pub(crate) struct Extension {
    /// Lifetime from now on, in milliseconds.
    #[schema(minimum = 1)]
    timeout_ms: i64,
}

/// New set of hosts that a sandbox may reach.
#[derive(Serialize, ToSchema)]
pub(crate) struct Hosts {
    /// Allowed hosts, as in `network.hosts`: `pypi.org`, `*.example.com:443`, `10.0.0.5:8080`.
    hosts: Vec<String>,
}

/// Network access and use of a sandbox.
#[derive(Serialize, ToSchema)]
pub(crate) struct NetworkUse {
    /// Access mode: none, hosts or full.
    mode: String,
    /// Allowed hosts; like the counters, only present in the mode `hosts`.
    hosts: Option<Vec<String>>,
    /// Denied connections, in the format of a result's `findings`.
    refused: Vec<Value>,
    /// Number of connections made.
    connections: Option<u64>,
    /// Number of bytes sent.
    sent_bytes: Option<u64>,
    /// Number of bytes received.
    received_bytes: Option<u64>,
}

/// State of a sandbox.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SandboxState {
    Starting,
    Running,
    Paused,
    Ended,
}

/// A sandbox. Times are in milliseconds since 1970.
#[derive(Serialize, ToSchema)]
pub(crate) struct Sandbox {
    /// Sandbox id.
    id: String,
    /// State of the sandbox.
    state: SandboxState,
    /// Name of the image.
    image: String,
    /// Name of the profile.
    profile: String,
    /// Limits of the whole sandbox.
    limits: Limits,
    /// Network access.
    network: Network,
    /// Names of the environment variables of every command; their values are not stored.
    env_names: Vec<String>,
    /// Mounted volumes and host folders.
    volumes: Vec<VolumeMount>,
    /// Packages installed at the start.
    dependencies: Installed,
    /// Lifetime in milliseconds.
    timeout_ms: u64,
    /// Action when the lifetime ends: kill or pause.
    on_timeout: String,
    /// Isolation that is enforced; null if the sandbox never started.
    #[schema(required)]
    receipt: Option<Receipt>,
    /// Metadata of the request.
    metadata: BTreeMap<String, Value>,
    /// Creation time.
    created: i64,
    /// Time of the last change of state.
    changed: i64,
    /// End of its lifetime; null while it is paused.
    #[schema(required)]
    expires: Option<i64>,
    /// End time; null while it lives.
    #[schema(required)]
    ended: Option<i64>,
    /// Reason for the end: closed, expired, idle, failed or interrupted.
    #[schema(required)]
    ended_because: Option<String>,
}

/// A page of sandboxes.
#[derive(Serialize, ToSchema)]
pub(crate) struct SandboxPage {
    /// Sandboxes, newest first.
    sandboxes: Vec<Sandbox>,
    /// Cursor of the next page; null on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// Current resource use of a sandbox. A value that this host cannot measure is null.
#[derive(Serialize, ToSchema)]
pub(crate) struct Stats {
    /// CPU time since it was opened, in milliseconds.
    #[schema(required)]
    cpu_ms: Option<u64>,
    /// Memory in bytes, including files on its disk.
    #[schema(required)]
    memory_bytes: Option<u64>,
    /// Peak memory in bytes.
    #[schema(required)]
    peak_memory_bytes: Option<u64>,
    /// Number of processes and threads.
    #[schema(required)]
    processes: Option<u64>,
    /// Peak number of processes and threads.
    #[schema(required)]
    peak_processes: Option<u64>,
    /// Size of the files on its disk in bytes.
    #[schema(required)]
    disk_bytes: Option<u64>,
    /// Bytes of output of all executions and commands that are still stored; null while paused.
    #[schema(required)]
    output_bytes: Option<u64>,
    /// Number of processes killed because memory ran out.
    memory_kills: u64,
    /// Number of times a new process or thread was refused.
    forks_refused: u64,
    /// Whether its disk is full.
    disk_full: bool,
    /// Denials since the sandbox was opened, of all its commands.
    findings: Vec<super::Finding>,
}
