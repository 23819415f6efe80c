//! JSON representation of a sandbox.

use belljar_engine::finding::Finding;
use belljar_engine::plan::Network;
use belljar_engine::sandbox::{AdmittedSandbox, OnTimeout, SandboxRequest};
use belljar_engine::sandbox_handle::{SandboxPhase, SandboxStats};
use belljar_store::{SandboxRecord, SandboxState};
use serde_json::{Map, Value, json};

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

/// Returns the settings stored for a sandbox. Of environment variables, only the names are stored.
pub(super) fn settings(names: RequestedNames, admitted: &AdmittedSandbox) -> Map<String, Value> {
    let limits = &admitted.plan.limits;
    let settings = json!({
        "image": names.image,
        "profile": names.profile,
        "limits": {
            "timeout_ms": limits.timeout.as_millis() as u64,
            "memory_bytes": limits.memory_bytes,
            "cpus": f64::from(limits.cpu_millis) / 1_000.0,
            "disk_bytes": limits.disk_bytes,
            "processes": limits.processes,
            "output_bytes": limits.output_bytes,
        },
        "network": network(&admitted.plan.network),
        "env_names": admitted.plan.env.keys().collect::<Vec<_>>(),
        "volumes": admitted.volumes,
        // Filled in once the sandbox is created.
        "receipt": null,
        "dependencies": {"packages": [], "cache": "none", "install_ms": 0},
        "timeout_ms": admitted.timeout.as_millis() as u64,
        "on_timeout": match admitted.on_timeout { OnTimeout::Kill => "kill", OnTimeout::Pause => "pause" },
    });
    match settings {
        Value::Object(settings) => settings,
        _ => Map::new(),
    }
}

/// Returns the JSON of network access.
pub(super) fn network(network: &Network) -> Value {
    match network {
        Network::None => json!({"mode": "none"}),
        Network::Hosts(rules) => json!({"mode": "hosts", "hosts": rules.hosts()}),
        Network::Full => json!({"mode": "full"}),
    }
}

/// Returns the JSON of a recorded sandbox, with the current state from `open` if it is live.
pub(super) fn sandbox(recorded: SandboxRecord, open: Option<&LiveSandbox>) -> Value {
    let (mut state, mut expires) = (recorded.state, recorded.expires);
    if let Some(open) = open.filter(|_| recorded.ended.is_none()) {
        expires = open.deadline().map(|deadline| deadline.shown);
        state = match open.living.state() {
            SandboxPhase::Paused => SandboxState::Paused,
            SandboxPhase::Running | SandboxPhase::Ended => SandboxState::Running,
        };
    }
    let mut object =
        Map::from_iter([("id".to_owned(), json!(recorded.id)), ("state".to_owned(), json!(state))]);
    object.extend(recorded.settings);
    // The hosts may have been changed since they were recorded.
    if let Some(now) = open.and_then(|open| open.living.network_stats()) {
        object.insert("network".to_owned(), network(&Network::Hosts(now.rules)));
    }
    let rest = json!({
        "metadata": recorded.metadata,
        "created": recorded.created,
        "changed": recorded.changed,
        "expires": expires,
        "ended": recorded.ended.map(|(at, _)| at),
        "ended_because": recorded.ended.map(|(_, because)| because),
    });
    if let Value::Object(rest) = rest {
        object.extend(rest);
    }
    object.into()
}

/// Returns the JSON of a sandbox's current resource use.
pub(super) fn stats(stats: &SandboxStats, output_bytes: Option<u64>, findings: &[Finding]) -> Value {
    json!({
        "cpu_ms": stats.cpu.map(|cpu| cpu.as_millis() as u64),
        "memory_bytes": stats.memory_bytes,
        "peak_memory_bytes": stats.peak_memory_bytes,
        "processes": stats.processes,
        "peak_processes": stats.peak_processes,
        "disk_bytes": stats.disk_bytes,
        "output_bytes": output_bytes,
        "memory_kills": stats.memory_kills,
        "forks_refused": stats.forks_refused,
        "disk_full": stats.disk_full,
        "findings": findings,
    })
}
