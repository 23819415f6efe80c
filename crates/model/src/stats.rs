//! Resource usage of a live sandbox.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Current resource usage of a sandbox, measured from outside; values that the host cannot measure are
/// absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxStats {
    /// CPU time of all processes since the sandbox was opened.
    pub cpu: Option<Duration>,
    /// Memory, including a disk in memory.
    pub memory_bytes: Option<u64>,
    /// Peak memory.
    pub peak_memory_bytes: Option<u64>,
    /// Number of processes and threads, without the guest.
    pub processes: Option<u64>,
    /// Peak number of processes and threads.
    pub peak_processes: Option<u64>,
    /// Bytes used on its disk.
    pub disk_bytes: Option<u64>,
    /// Number of processes killed because the sandbox's memory ran out.
    pub memory_kills: u64,
    /// Number of processes killed because the memory for all sandboxes together ran out.
    pub machine_memory_kills: u64,
    /// Number of refused new processes and threads.
    pub forks_refused: u64,
    /// Whether no block or no inode is left.
    pub disk_full: bool,
}
