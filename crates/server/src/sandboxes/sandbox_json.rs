//! JSON representation of a sandbox.

use belljar_engine::finding::Finding;
use belljar_engine::limits::LimitsSpec;
use belljar_engine::outcome::Receipt;
use belljar_engine::plan::Network;
use belljar_engine::report::DependenciesReport;
use belljar_engine::sandbox::{AdmittedSandbox, OnTimeout, SandboxRequest, VolumeSpec};
use belljar_engine::sandbox_handle::{SandboxPhase, SandboxStats};
use belljar_store::{SandboxEnd, SandboxId, SandboxRecord, SandboxState, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::live_sandbox::LiveSandbox;

/// Names that only the request contains.
#[derive(Debug)]
pub(super) struct RequestedNames {
    image: String,
    profile: String,
}

impl RequestedNames {
    pub(super) fn from_request(request: &SandboxRequest) -> Self {
        let named = |name: &Option<String>, usual: &str| name.as_deref().unwrap_or(usual).to_owned();
        Self { image: named(&request.image, "host"), profile: named(&request.profile, "default") }
    }
}

/// The settings stored for a sandbox. Of environment variables, only the names are stored.
#[derive(Debug, Serialize, JsonSchema)]
struct SandboxSettings {
    /// Name of the image.
    image: String,
    /// Name of the profile.
    profile: String,
    /// Limits of the whole sandbox.
    limits: LimitsSpec,
    /// Network access.
    network: NetworkAccess,
    /// Names of the environment variables of every command; their values are not stored.
    env_names: Vec<String>,
    /// Mounted volumes and host folders.
    volumes: Vec<VolumeSpec>,
    /// Packages installed at the start.
    dependencies: DependenciesReport,
    /// Lifetime in milliseconds.
    timeout_ms: u64,
    /// Action when the lifetime ends: kill or pause.
    on_timeout: OnTimeout,
    /// Isolation that is enforced; null if the sandbox never started.
    receipt: Option<Receipt>,
}

/// Network access of a sandbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct NetworkAccess {
    /// Access mode: none, hosts or full.
    mode: &'static str,
    /// Allowed hosts, in the mode `hosts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<Vec<String>>,
}

impl From<&Network> for NetworkAccess {
    fn from(network: &Network) -> Self {
        match network {
            Network::None => Self { mode: "none", hosts: None },
            Network::Hosts(rules) => Self { mode: "hosts", hosts: Some(rules.hosts()) },
            Network::Full => Self { mode: "full", hosts: None },
        }
    }
}

/// A sandbox. Times are in milliseconds since 1970.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Sandbox")]
pub(crate) struct SandboxInfo {
    /// Sandbox id.
    id: SandboxId,
    /// State of the sandbox.
    state: SandboxState,
    #[serde(flatten)]
    #[schemars(with = "SandboxSettings")]
    settings: Map<String, Value>,
    /// Metadata of the request.
    metadata: Map<String, Value>,
    /// Creation time.
    created: Timestamp,
    /// Time of the last change of state.
    changed: Timestamp,
    /// End of its lifetime; null while it is paused.
    expires: Option<Timestamp>,
    /// End time; null while it lives.
    ended: Option<Timestamp>,
    /// Reason for the end: closed, expired, idle, failed or interrupted.
    ended_because: Option<SandboxEnd>,
}

/// Current resource use of a sandbox. A value that this host cannot measure is null.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Stats")]
pub(crate) struct SandboxUsage {
    /// CPU time since it was opened, in milliseconds.
    cpu_ms: Option<u64>,
    /// Memory in bytes, including files on its disk.
    memory_bytes: Option<u64>,
    /// Peak memory in bytes.
    peak_memory_bytes: Option<u64>,
    /// Number of processes and threads.
    processes: Option<u64>,
    /// Peak number of processes and threads.
    peak_processes: Option<u64>,
    /// Size of the files on its disk in bytes.
    disk_bytes: Option<u64>,
    /// Bytes of output of all executions and commands that are still stored; null while paused.
    output_bytes: Option<u64>,
    /// Number of processes killed because memory ran out.
    memory_kills: u64,
    /// Number of times a new process or thread was refused.
    forks_refused: u64,
    /// Whether its disk is full.
    disk_full: bool,
    /// Denials since the sandbox was opened, of all its commands.
    findings: Vec<Finding>,
}

/// Returns the settings stored for a sandbox that is about to be created.
pub(super) fn settings(names: RequestedNames, admitted: &AdmittedSandbox) -> Map<String, Value> {
    let limits = &admitted.plan.limits;
    let settings = SandboxSettings {
        image: names.image,
        profile: names.profile,
        limits: LimitsSpec {
            timeout_ms: Some(limits.timeout.as_millis() as i64),
            memory_bytes: Some(limits.memory_bytes as i64),
            cpus: Some(f64::from(limits.cpu_millis) / 1_000.0),
            disk_bytes: Some(limits.disk_bytes as i64),
            processes: Some(limits.processes.into()),
            output_bytes: Some(limits.output_bytes as i64),
        },
        network: (&admitted.plan.network).into(),
        env_names: admitted.plan.env.keys().cloned().collect(),
        volumes: admitted.volumes.clone(),
        // The receipt and the packages are filled in once the sandbox is created.
        receipt: None,
        dependencies: DependenciesReport::default(),
        timeout_ms: admitted.timeout.as_millis() as u64,
        on_timeout: admitted.on_timeout,
    };
    match serde_json::to_value(settings) {
        Ok(Value::Object(settings)) => settings,
        _ => Map::new(),
    }
}

/// Returns a recorded sandbox, with the current state from `open` if it is live.
pub(super) fn sandbox(recorded: SandboxRecord, open: Option<&LiveSandbox>) -> SandboxInfo {
    let (mut state, mut expires) = (recorded.state, recorded.expires);
    if let Some(open) = open.filter(|_| recorded.ended.is_none()) {
        expires = open.deadline().map(|deadline| deadline.shown);
        state = match open.living.state() {
            SandboxPhase::Paused => SandboxState::Paused,
            SandboxPhase::Running | SandboxPhase::Ended => SandboxState::Running,
        };
    }
    let mut settings = recorded.settings;
    // The hosts may have been changed since they were recorded.
    if let Some(now) = open.and_then(|open| open.living.network_stats()) {
        settings.insert("network".to_owned(), json_value(&NetworkAccess::from(&Network::Hosts(now.rules))));
    }
    SandboxInfo {
        id: recorded.id,
        state,
        settings,
        metadata: recorded.metadata,
        created: recorded.created,
        changed: recorded.changed,
        expires,
        ended: recorded.ended.map(|(at, _)| at),
        ended_because: recorded.ended.map(|(_, because)| because),
    }
}

/// Returns a setting as it is stored.
pub(super) fn json_value(setting: &impl Serialize) -> Value {
    serde_json::to_value(setting).unwrap_or_default()
}

/// Returns a sandbox's current resource use.
pub(super) fn usage(stats: &SandboxStats, output_bytes: Option<u64>, findings: Vec<Finding>) -> SandboxUsage {
    SandboxUsage {
        cpu_ms: stats.cpu.map(|cpu| cpu.as_millis() as u64),
        memory_bytes: stats.memory_bytes,
        peak_memory_bytes: stats.peak_memory_bytes,
        processes: stats.processes,
        peak_processes: stats.peak_processes,
        disk_bytes: stats.disk_bytes,
        output_bytes,
        memory_kills: stats.memory_kills,
        forks_refused: stats.forks_refused,
        disk_full: stats.disk_full,
        findings,
    }
}
