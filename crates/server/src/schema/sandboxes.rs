//! Sandboxes.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{Dependencies, Installed, Limits, Network, Receipt};

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
    /// Name of the policy for everything that is run in it.
    policy: Option<String>,
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

/// How long a sandbox is to live from now on.
#[derive(Serialize, ToSchema)]
pub(crate) struct Extension {
    #[schema(minimum = 1)]
    timeout_ms: i64,
}

/// What a sandbox is to reach from now on.
#[derive(Serialize, ToSchema)]
pub(crate) struct Hosts {
    /// As in `network.hosts`: `pypi.org`, `*.example.com:443`, `10.0.0.5:8080`.
    hosts: Vec<String>,
}

/// What a sandbox may reach, and has reached.
#[derive(Serialize, ToSchema)]
pub(crate) struct NetworkUse {
    /// none, hosts or full.
    mode: String,
    /// For `hosts`, and so are the figures.
    hosts: Option<Vec<String>>,
    /// What it was kept from, as in `findings` of a result.
    refused: Vec<Value>,
    connections: Option<u64>,
    sent_bytes: Option<u64>,
    received_bytes: Option<u64>,
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
    /// What it was kept from since it was opened, whichever of its commands that was.
    findings: Vec<super::Finding>,
}
