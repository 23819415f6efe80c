//! Sandboxes in responses.

use belljar_engine::finding::Finding;
use belljar_engine::sandbox_handle::SandboxStats;
use belljar_store::{SandboxEnd, SandboxId, SandboxRecord, SandboxState, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::sandboxes::live_sandbox::LiveSandbox;
use crate::sandboxes::settings::{SandboxSettings, with_live_state};

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
    /// Time at which it expires if it is not used from now on; null while it is paused, and after its end.
    expires: Option<Timestamp>,
    /// End time; null while it lives.
    ended: Option<Timestamp>,
    /// Kind of end: closed, expired, idle, failed or interrupted.
    ended_because: Option<SandboxEnd>,
    /// Why nothing runs in it: the reason of its end, or why the server halted it; null otherwise.
    halted: Option<String>,
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

impl SandboxInfo {
    /// Creates the info of a recorded sandbox, with the current state of the live one, if it lives.
    pub(super) fn new(record: SandboxRecord, open: Option<&LiveSandbox>) -> Self {
        let halted = match record.end_reason() {
            Some(reason) => Some(reason.to_owned()),
            None => open.and_then(|open| open.living.halt_reason()),
        };
        let SandboxRecord { id, state, settings, metadata, created, changed, expires, ended, .. } =
            with_live_state(record, open);
        let (ended, ended_because) = ended.unzip();
        Self { id, state, settings, metadata, created, changed, expires, ended, ended_because, halted }
    }

    pub(super) fn state(&self) -> SandboxState {
        self.state
    }
}

impl SandboxUsage {
    pub(super) fn new(stats: &SandboxStats, output_bytes: Option<u64>, findings: Vec<Finding>) -> Self {
        Self {
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
}
