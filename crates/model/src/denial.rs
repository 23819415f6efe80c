//! Actions that a sandbox refused, whether or not the program ended because of them.

use serde::{Deserialize, Serialize};

/// A system call that the seccomp filter refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedSyscall {
    /// Name of the call.
    pub name: String,
    /// The first three arguments of the first occurrence.
    pub arguments: [u64; 3],
    /// Number of occurrences.
    pub count: u32,
}

/// Everything that was denied to an execution, whether or not it ended because of that.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Denials {
    /// Refused system calls, one entry per name.
    pub calls: Vec<DeniedSyscall>,
    /// Whether there were more refused calls than were recorded.
    pub more_calls: bool,
    /// Number of refused forks, where a cgroup counts them.
    pub forks_refused: u64,
    /// Number of processes killed because memory ran out, if the execution survived that.
    pub memory_kills: u64,
    /// Whether no block or no inode was left at the end.
    pub disk_full: bool,
}

impl Denials {
    /// Records a call, adding its count to an earlier entry of the same name.
    pub fn add(&mut self, call: DeniedSyscall) {
        match self.calls.iter_mut().find(|known| known.name == call.name) {
            Some(known) => known.count = known.count.saturating_add(call.count),
            None => self.calls.push(call),
        }
    }
}
