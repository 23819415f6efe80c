//! Limits the memory of all groups together. They are below one directory whose limit leaves room for the
//! server and the rest of the machine. A process killed because of that limit did not exceed the limit of its
//! own group.
//!
//! The two causes of a kill are told apart by which group was notified: on v1 the notification of the
//! directory above is for both.

use super::launcher_dir::LauncherDir;
use super::{Controller, Group, Hierarchy};

/// Memory reserved for others: a tenth, and at least this much if the machine has twice as much.
const RESERVED_BYTES: u64 = 512 << 20;

/// Out-of-memory events of a group so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryEvents {
    /// Number of its processes that were killed.
    pub kills: u64,
    /// How often it ran out of its own memory, relative to an arbitrary start.
    group_ooms: i64,
    /// How often all groups together ran out of memory, if the kernel reports it.
    total_ooms: u64,
}

impl MemoryEvents {
    /// Returns how many processes were killed since `before` because all groups together ran out of memory,
    /// although this group had not used up its own. If both happened, the kill is attributed to the common
    /// limit, so that a kill that was not the group's fault is never reported as its own.
    pub fn machine_kills_since(&self, before: &MemoryEvents) -> u64 {
        let from_above = self.group_ooms <= before.group_ooms || self.total_ooms > before.total_ooms;
        if from_above { self.kills.saturating_sub(before.kills) } else { 0 }
    }
}

impl Hierarchy {
    /// Limits the memory of all groups together to what the machine, or this process's parent group, can
    /// spare. If that cannot be set, only the limit of each group applies.
    pub fn reserve_host_memory(&self) {
        let total = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| parse_total_memory(&text));
        let parent = self.memory_dir().and_then(LauncherDir::parent_memory_limit);
        let least = parent.into_iter().chain(total).min();
        if let Some(total) = least {
            self.set_total_memory_limit(total - (total / 10).max(RESERVED_BYTES.min(total / 2)));
        }
    }

    /// Limits the memory of all groups together, unless they already have a lower limit.
    pub fn set_total_memory_limit(&self, memory_bytes: u64) {
        if self.total_memory_limit.get().is_some_and(|limit| limit <= memory_bytes) {
            return;
        }
        // If this fails, the limit of each group still applies.
        if let Some(dir) = self.memory_dir().filter(|dir| dir.set_total_memory(memory_bytes).is_ok()) {
            dir.watch_total_ooms();
            self.total_memory_limit.set(Some(memory_bytes));
        }
    }

    /// Returns the directory in which memory is limited: a controller is in one hierarchy only.
    fn memory_dir(&self) -> Option<&LauncherDir> {
        self.launcher_dirs.iter().find(|dir| dir.has(Controller::Memory))
    }

    /// Returns the memory limit of all groups together, if there is one.
    pub fn total_memory_limit(&self) -> Option<u64> {
        self.total_memory_limit.get()
    }

    /// Returns the memory used by all groups together.
    pub fn total_memory_in_use(&self) -> Option<u64> {
        self.memory_dir()?.total_memory_in_use()
    }
}

impl Group {
    /// Returns the out-of-memory events of the group.
    pub fn memory_events(&self) -> MemoryEvents {
        let Some(dir) = self.dir_with(Controller::Memory) else { return MemoryEvents::default() };
        MemoryEvents {
            kills: dir.oom_kills(self).unwrap_or(0),
            group_ooms: dir.group_ooms(self),
            total_ooms: dir.total_ooms(),
        }
    }

    /// Returns whether a process was killed because all groups together ran out of memory, although this
    /// group had not used up its own.
    pub fn was_killed_for_total_memory(&self) -> bool {
        self.memory_events().machine_kills_since(&self.memory_events_before()) > 0
    }

    /// Returns the out-of-memory events before the current run.
    pub fn memory_events_before(&self) -> MemoryEvents {
        self.cache.events_before.get()
    }

    /// Attributes all further events to the next run.
    pub(super) fn reset_memory_events(&self) {
        self.cache.events_before.set(self.memory_events());
    }
}

fn parse_total_memory(meminfo: &str) -> Option<u64> {
    let kilobytes = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    kilobytes.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kill_is_attributed_to_the_group_only_if_nothing_else_can_be_the_cause() {
        let events = |kills, own, all| MemoryEvents { kills, group_ooms: own, total_ooms: all };
        let before = events(1, 2, 3);
        assert_eq!(events(2, 3, 3).machine_kills_since(&before), 0, "its own limit");
        assert_eq!(events(2, 2, 4).machine_kills_since(&before), 1, "the common limit");
        assert_eq!(
            events(3, 2, 3).machine_kills_since(&before),
            2,
            "the machine's memory, which is not reported"
        );
        assert_eq!(events(2, 9, 4).machine_kills_since(&before), 1, "both");
        assert_eq!(events(1, 9, 4).machine_kills_since(&before), 0, "no process was killed");
    }
}
