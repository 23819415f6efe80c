//! Figures about warm pools and the event loop that serves them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Metrics of a warm pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolMetrics {
    /// Name of the pool: the language and its preimports, e.g. `python` or `python+numpy+pandas`.
    pub name: String,
    /// Tenant of the pool.
    pub tenant: String,
    /// Number of waiting children.
    pub size: usize,
    /// Target number of waiting children.
    pub wanted: usize,
    /// Memory held by the waiting children.
    pub memory_bytes: u64,
    /// Executions served by a waiting child.
    pub hits: u64,
    /// Executions served by a child forked on demand.
    pub forks: u64,
    /// Executions that started cold.
    pub misses: u64,
    /// Zygotes started so far, including the first one.
    pub zygotes: u64,
    /// Children whose confinement, inspected from outside, differed from what they reported. Nothing ran in
    /// them; their zygote and all its children were killed.
    pub mismatches: u64,
    /// Time it took to prepare the last child.
    pub refill_ms: f64,
    /// Host process ids of the waiting children.
    pub processes: Vec<u32>,
    /// Why the pool cannot be filled, if something prevents it.
    pub obstacle: Option<String>,
}

/// A warm child whose confinement, inspected from outside, differed from what it reported. Nothing ran in it;
/// its zygote and all its children were killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfinementMismatch {
    /// Name of its pool: the language and its preimports.
    pub pool: String,
    /// Tenant of the pool.
    pub tenant: String,
    /// The difference.
    pub what: String,
}

/// The longest turns of the event loop that serves all sandboxes of a local provider, for turns in which one
/// handler took the most time. Other sandboxes wait while a turn lasts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongestTurns {
    /// Name of the handler, from a closed list.
    pub handler: String,
    /// Longest CPU time of a turn.
    pub longest_cpu: Duration,
    /// The longest time from one poll to the next.
    pub longest_wall: Duration,
}
