//! The settings of a sandbox, as they are stored with its record.

use std::time::Duration;

use belljar_engine::limits::LimitsSpec;
use belljar_engine::outcome::Receipt;
use belljar_engine::plan::Network;
use belljar_engine::report::DependenciesReport;
use belljar_engine::sandbox::{AdmittedSandbox, OnTimeout, SandboxRequest, VolumeSpec};
use belljar_engine::sandbox_handle::SandboxPhase;
use belljar_store::{SandboxRecord, SandboxState};
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
pub(crate) struct SandboxSettings {
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
    /// Packages installed at the start, and added later by executions.
    dependencies: DependenciesReport,
    /// How long it may be unused, in milliseconds.
    timeout_ms: u64,
    /// Life in milliseconds from its creation, used or not.
    life_ms: u64,
    /// Action when it was not used for its timeout: kill or pause.
    on_timeout: OnTimeout,
    /// Isolation that is enforced; null if the sandbox never started.
    receipt: Option<Receipt>,
}

/// Network access of a sandbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct NetworkAccess {
    /// Access mode: none, hosts, internet or full.
    mode: &'static str,
    /// Allowed hosts, in the mode `hosts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<Vec<String>>,
}

impl From<&Network> for NetworkAccess {
    fn from(network: &Network) -> Self {
        let hosts = match network {
            Network::Hosts(rules) => Some(rules.hosts()),
            Network::None | Network::Internet(_) | Network::Full => None,
        };
        Self { mode: network.mode(), hosts }
    }
}

/// Returns the settings stored for a sandbox that is about to be created.
pub(super) fn stored_settings(
    names: RequestedNames,
    admitted: &AdmittedSandbox,
    life: Duration,
) -> Map<String, Value> {
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
        life_ms: life.as_millis() as u64,
        on_timeout: admitted.on_timeout,
    };
    match serde_json::to_value(settings) {
        Ok(Value::Object(settings)) => settings,
        _ => Map::new(),
    }
}

/// Returns a recorded sandbox, with its current state, settings and deadline if it is live.
pub(crate) fn with_live_state(recorded: SandboxRecord, open: Option<&LiveSandbox>) -> SandboxRecord {
    let SandboxRecord { mut state, mut settings, mut expires, .. } = recorded;
    if let Some(open) = open.filter(|_| recorded.ended.is_none()) {
        expires = open.expires();
        settings.insert("timeout_ms".to_owned(), json_value(&(open.timeout().as_millis() as u64)));
        state = match open.living.state() {
            SandboxPhase::Paused => SandboxState::Paused,
            SandboxPhase::Running if open.living.halt_reason().is_some() => SandboxState::Halted,
            SandboxPhase::Running | SandboxPhase::Ended => SandboxState::Running,
        };
    }
    if let (Some(names), Some(Value::Object(dependencies))) =
        (open.and_then(|open| open.packages.names()), settings.get_mut("dependencies"))
    {
        dependencies.insert("packages".to_owned(), json_value(&names));
    }
    // The hosts may have been changed since they were recorded.
    if let Some(now) = open.and_then(|open| open.living.network_stats()) {
        settings
            .insert("network".to_owned(), json_value(&NetworkAccess::from(&Network::from_rules(now.rules))));
    }
    SandboxRecord { state, settings, expires, ..recorded }
}

/// Returns a setting as it is stored.
pub(super) fn json_value(setting: &impl Serialize) -> Value {
    serde_json::to_value(setting).unwrap_or_default()
}
