//! The outcome of a task: how the program ended, what it used, and what enforced its isolation.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::finding::Finding;
use crate::json_text::JsonText;
use crate::layer::Layer;
use crate::sandbox::{DiskStorage, RootAccess};

/// A limit that can end a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "LimitName")]
pub enum Limit {
    /// Memory of the whole sandbox.
    Memory,
    /// Processes and threads.
    Processes,
    /// Disk space or inodes.
    Disk,
    /// Output, if the profile ends programs that exceed it.
    Output,
}

/// How a program ended. Never an error of Belljar itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Exited with this status.
    Exited(u8),
    /// Killed by a signal that Belljar did not send.
    Signalled(i32),
    /// Killed at its time limit.
    TimedOut,
    /// Ended because of a limit; with its exit status if it exited by itself.
    LimitHit(Limit, Option<u8>),
    /// Canceled by the caller.
    Cancelled,
}

/// Resources used by a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// CPU time of all processes in milliseconds.
    #[serde(rename = "cpu_ms", with = "millis")]
    #[schemars(with = "f64")]
    pub cpu: Duration,
    /// Peak memory in bytes.
    pub peak_memory_bytes: u64,
    /// Peak number of processes and threads; null if the host cannot measure it.
    #[serde(rename = "processes_peak")]
    pub peak_processes: Option<u64>,
}

/// Converts to milliseconds with microsecond precision, enough for the fastest execution.
pub fn to_millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1_000.0
}

/// Durations as milliseconds in JSON, and unchanged in the launcher's binary messages.
mod millis {
    use super::*;

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.serialize_f64(to_millis(*duration)),
            false => duration.serialize(serializer),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        match deserializer.is_human_readable() {
            true => {
                let seconds = f64::deserialize(deserializer)? / 1_000.0;
                Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
            }
            false => Duration::deserialize(deserializer),
        }
    }
}

/// The kernel that the program ran on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kernel {
    /// The host's kernel.
    Host,
    /// gVisor.
    Gvisor,
    /// The kernel of a remote service.
    Remote,
}

/// Whether a warm interpreter served an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Warmth {
    /// A warm child was waiting in its own sandbox.
    Pool,
    /// A child was forked from a zygote for the request.
    Fork,
    /// No: the interpreter was started for this execution.
    #[default]
    Cold,
}

impl Warmth {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Fork => "fork",
            Self::Cold => "cold",
        }
    }

    /// Serializes a receipt's warmth as `"pool"`, `"fork"` or `false`.
    fn serialize_in_receipt<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Cold => serializer.serialize_bool(false),
            warm => serializer.serialize_str(warm.name()),
        }
    }
}

impl JsonSchema for Warmth {
    fn schema_name() -> Cow<'static, str> {
        "Warmth".into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"enum": ["pool", "fork", false]})
    }
}

/// A remote service that ran the program on its own machines. Belljar has only the service's word for its
/// isolation and enforces none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Service")]
pub struct ServiceInfo {
    /// Host of the service's API.
    pub host: String,
    /// Template the machine was created from.
    pub template: String,
    /// Region of the machine, if one was chosen.
    pub region: Option<String>,
}

/// The network of an execution or a sandbox, and what restricts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NetworkReceipt {
    /// Access mode: none, hosts, internet or full.
    pub mode: &'static str,
    /// Its restrictions: `net_ns`, the isolation layer, and `gate`, the only way out, to which a TUN device leads
    /// (`tun`), or else a proxy. Empty if nothing does.
    pub enforced_by: &'static [&'static str],
    /// Hosts that programs can reach.
    pub reaches: &'static str,
}

/// A writable root, and what holds in place of the isolation layers `read_only_root` and `no_capabilities`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RootReceipt {
    /// Access to the root.
    pub access: RootAccess,
    /// Capabilities of the root user, which are valid for the sandbox's own files and processes only.
    pub capabilities: Vec<&'static str>,
}

/// Isolation that was really enforced for an execution or a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Receipt {
    /// Name of the provider.
    pub provider: &'static str,
    /// Kernel the program ran on.
    pub kernel: Kernel,
    /// Isolation layers that were enforced, in a fixed order.
    pub isolation: Vec<Layer>,
    /// How the sandbox was started: `"pool"` or `"fork"`, or `false` for a cold start.
    #[serde(serialize_with = "Warmth::serialize_in_receipt")]
    pub warm: Warmth,
    /// Whether isolation was only simulated.
    pub simulated: bool,
    /// Network, and what restricts it; absent if Belljar does not decide about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkReceipt>,
    /// The root of a sandbox, if it is writable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<RootReceipt>,
    /// Where the disk of a sandbox is; absent if the provider has no choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_storage: Option<DiskStorage>,
    /// Provider that should have run it, but was failing: this one is its configured fallback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instead_of: Option<&'static str>,
    /// Remote service that ran it; isolation is then the service's responsibility.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceInfo>,
}

impl Receipt {
    /// Creates the receipt of a cold start without isolation layers.
    pub fn new(provider: &'static str, kernel: Kernel) -> Self {
        Self {
            provider,
            kernel,
            isolation: Vec::new(),
            warm: Warmth::Cold,
            simulated: false,
            network: None,
            root: None,
            disk_storage: None,
            instead_of: None,
            service: None,
        }
    }
}

/// A file that the program left below `./artifacts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Path below `./artifacts`.
    pub name: String,
    /// Content.
    pub content: Vec<u8>,
}

/// Default size limit of what `main` returns, as JSON, in bytes.
pub const DEFAULT_RESULT_BYTES: u64 = 16 << 20;
/// The highest size limit that can be set. Results are stored with the output, so it is below the limit of a stored
/// result.
pub const MAX_RESULT_BYTES: u64 = 48 << 20;

/// Bytes that the program wrote to its result pipe: untrusted tenant data.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum ReturnValue {
    /// Nothing: no arguments were given, or `main` did not return.
    #[default]
    Absent,
    /// A value.
    Present(JsonText),
    /// Something that is not a result, and why. A program that ends like this has failed.
    Invalid(String),
}

/// The outcome of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// How the program ended.
    pub ending: Ending,
    /// Time from the first set-up step to the ending.
    pub duration: Duration,
    /// Resources used.
    pub usage: Usage,
    /// Value that `main` returned.
    pub result: ReturnValue,
    /// Files from below `./artifacts`.
    pub artifacts: Vec<Artifact>,
    /// Findings about denied actions, at most [`MAX_FINDINGS`](crate::finding::MAX_FINDINGS).
    pub findings: Vec<Finding>,
    /// Receipt of the enforced isolation.
    pub receipt: Receipt,
}

impl Outcome {
    /// Creates an outcome without results, findings or measured usage.
    pub fn new(ending: Ending, duration: Duration, receipt: Receipt) -> Self {
        Self {
            ending,
            duration,
            usage: Usage::default(),
            result: ReturnValue::Absent,
            artifacts: Vec::new(),
            findings: Vec::new(),
            receipt,
        }
    }
}
