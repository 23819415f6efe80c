//! What a program did and what enforced it.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::finding::Finding;
use crate::layer::Layer;

/// A limit that can end a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Memory of the group.
    Memory,
    /// Processes and threads.
    Processes,
    /// Space or inodes.
    Disk,
    /// Output, where the profile says that it ends the program.
    Output,
}

/// How a program ended. Never an error of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this status.
    Exited(u8),
    /// By a signal that was not ours.
    Signalled(i32),
    /// Its time was over.
    TimedOut,
    /// Because of a limit; with its own status where it failed by itself and was not ended.
    LimitHit(Limit, Option<u8>),
    /// Somebody asked for it.
    Cancelled,
}

/// What it used.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// Processor time of all processes.
    pub cpu: Duration,
    /// The most memory at one time.
    pub peak_memory_bytes: u64,
    /// The most processes and threads at one time, where the host can tell.
    pub peak_processes: Option<u64>,
}

/// Whose kernel stood between the program and the hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernel {
    /// The host's own.
    Host,
    /// gVisor's.
    Gvisor,
    /// Somebody else's machine.
    Remote,
}

/// Whether an interpreter was waiting for this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Warmth {
    /// In a sandbox of its own, made ahead of time.
    Pool,
    /// It was forked when the request came.
    Fork,
    /// No: it was started for this run.
    #[default]
    Cold,
}

/// `"pool"`, `"fork"` or `false`.
impl Serialize for Warmth {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Pool => serializer.serialize_str("pool"),
            Self::Fork => serializer.serialize_str("fork"),
            Self::Cold => serializer.serialize_bool(false),
        }
    }
}

/// Somebody else's machines. What keeps a program in there is their word, and nothing that Belljar enforces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Service {
    /// Whose they are: the host that was asked for one.
    pub host: String,
    /// What the machine was made of.
    pub template: String,
    /// Where it stood, if that was chosen.
    pub region: Option<String>,
}

/// What really enforced this run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Name of the provider.
    pub provider: &'static str,
    /// Kernel boundary.
    pub kernel: Kernel,
    /// Layers that were in force, in the order of [`Layer::ALL`].
    pub isolation: Vec<Layer>,
    /// Whether an interpreter was waiting.
    pub warm: Warmth,
    /// Whether nothing really ran.
    pub simulated: bool,
    /// Whose machine it ran on, where that was not ours.
    pub service: Option<Service>,
}

/// A file that the program left in `./artifacts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// File name, without a path.
    pub name: String,
    /// Content.
    pub content: Vec<u8>,
}

/// What came of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// From the first step of the set-up to the ending.
    pub duration: Duration,
    /// What it used.
    pub usage: Usage,
    /// What `main` returned, where arguments were given and it did return. Data from the tenant.
    pub result: Option<Value>,
    /// Files from `./artifacts`.
    pub artifacts: Vec<Artifact>,
    /// What the sandbox kept it from, at most [`MAX_FINDINGS`](crate::finding::MAX_FINDINGS).
    pub findings: Vec<Finding>,
    /// What enforced it.
    pub receipt: Receipt,
}
