//! The outcome of a task: how the program ended, what it used, and what enforced its isolation.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::finding::Finding;
use crate::layer::Layer;

/// A limit that can end a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
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
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// CPU time of all processes.
    pub cpu: Duration,
    /// Peak memory.
    pub peak_memory_bytes: u64,
    /// Peak number of processes and threads, if the host can measure it.
    pub peak_processes: Option<u64>,
}

/// The kernel that the program ran on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Warmth {
    /// A warm child was waiting in its own sandbox.
    Pool,
    /// A child was forked from a zygote for the request.
    Fork,
    /// No: the interpreter was started for this execution.
    #[default]
    Cold,
}

/// Serializes as `"pool"`, `"fork"` or `false`.
impl Serialize for Warmth {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Pool => serializer.serialize_str("pool"),
            Self::Fork => serializer.serialize_str("fork"),
            Self::Cold => serializer.serialize_bool(false),
        }
    }
}

/// A remote service that ran the program. Belljar has only the service's word for its isolation and enforces
/// none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceInfo {
    /// Host name of the service.
    pub host: String,
    /// Template that the machine was created from.
    pub template: String,
    /// Region of the machine, if one was selected.
    pub region: Option<String>,
}

/// The receipt: the mechanisms that really enforced the isolation of an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Name of the provider.
    pub provider: &'static str,
    /// Kernel that the program ran on.
    pub kernel: Kernel,
    /// Enforced layers, in the order of [`Layer::ALL`].
    pub isolation: Vec<Layer>,
    /// Whether a warm interpreter served the execution.
    pub warm: Warmth,
    /// Whether the execution was only simulated.
    pub simulated: bool,
    /// The remote service that it ran on, if any.
    pub service: Option<ServiceInfo>,
}

/// A file that the program wrote to `./artifacts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// File name, without a path.
    pub name: String,
    /// Content.
    pub content: Vec<u8>,
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
    /// Value that `main` returned, if arguments were given and it returned. Untrusted tenant data.
    pub result: Option<Value>,
    /// Files from `./artifacts`.
    pub artifacts: Vec<Artifact>,
    /// Findings about denied actions, at most [`MAX_FINDINGS`](crate::finding::MAX_FINDINGS).
    pub findings: Vec<Finding>,
    /// Receipt of the enforced isolation.
    pub receipt: Receipt,
}
