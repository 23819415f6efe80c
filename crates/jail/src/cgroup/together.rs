//! The memory of all groups together: they live below one folder, whose limit leaves room for the server and everything else
//! on the machine. A process that is killed because of that limit has not used up its own.

use super::{Controller, Group, Hierarchy};

/// What is kept for others: a tenth, and no less than this where the machine has twice as much.
const KEPT_BYTES: u64 = 512 << 20;

/// What happened to a group for want of memory, so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryEvents {
    /// How many of its processes were killed.
    pub kills: u64,
    /// How often it ran out of its own memory, counted from anywhere.
    own: i64,
    /// How often all groups together ran out of theirs, where that is announced.
    all: u64,
}

impl MemoryEvents {
    /// How many processes were killed since then although the group had not used up its own memory: all groups together had.
    /// Where both had, it counts as theirs: a kill that was not the group's fault is never told as its own.
    pub fn machine_kills_since(&self, before: &MemoryEvents) -> u64 {
        let from_above = self.own <= before.own || self.all > before.all;
        if from_above { self.kills.saturating_sub(before.kills) } else { 0 }
    }
}

impl Hierarchy {
    /// Limits the memory of all groups together to what the machine, or the group that this process is in, has to spare.
    /// Where that cannot be set only the limits of each group hold.
    pub fn leave_room_for_others(&self) {
        let total = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_memory(&text));
        let place = self.places.iter().find(|place| place.has(Controller::Memory));
        let least = place.and_then(|place| place.memory_above()).into_iter().chain(total).min();
        if let Some(total) = least {
            self.limit_all(total - (total / 10).max(KEPT_BYTES.min(total / 2)));
        }
    }

    /// Limits the memory of all groups together, where they do not have a lower limit already.
    pub fn limit_all(&self, memory_bytes: u64) {
        if self.memory_for_all.get().is_some_and(|limit| limit <= memory_bytes) {
            return;
        }
        for place in self.places.iter().filter(|place| place.has(Controller::Memory)) {
            // Without it the limits of each group still hold.
            if place.limit_all(memory_bytes).is_ok() {
                place.watch_all();
                self.memory_for_all.set(Some(memory_bytes));
            }
        }
    }

    /// What all groups together may have, where that is limited.
    pub fn memory_for_all(&self) -> Option<u64> {
        self.memory_for_all.get()
    }

    /// The memory that all groups together use now.
    pub fn memory_of_all(&self) -> Option<u64> {
        self.places.iter().find(|place| place.has(Controller::Memory))?.memory_of_all()
    }
}

impl Group {
    /// What happened to the group for want of memory.
    pub fn memory_events(&self) -> MemoryEvents {
        let Some(place) = self.with(Controller::Memory) else { return MemoryEvents::default() };
        MemoryEvents {
            kills: place.oom_kills(self).unwrap_or(0),
            own: place.own_ooms(self),
            all: place.ooms_of_all(),
        }
    }

    /// Whether a process was killed for want of memory although the group had not used up its own: all groups together had.
    pub fn was_killed_from_above(&self) -> bool {
        self.memory_events().machine_kills_since(&self.memory_events_before()) > 0
    }

    /// What had happened before the run that the group is for.
    pub fn memory_events_before(&self) -> MemoryEvents {
        self.account.events_before.get()
    }

    /// What happens from now on is another run's.
    pub(super) fn begin_memory_events(&self) {
        self.account.events_before.set(self.memory_events());
    }
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let kilobytes = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    kilobytes.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_is_the_groups_own_only_where_nothing_else_can_have_caused_it() {
        let events = |kills, own, all| MemoryEvents { kills, own, all };
        let before = events(1, 2, 3);
        assert_eq!(events(2, 3, 3).machine_kills_since(&before), 0, "its own limit");
        assert_eq!(events(2, 2, 4).machine_kills_since(&before), 1, "that of all");
        assert_eq!(events(3, 2, 3).machine_kills_since(&before), 2, "the machine's, which announces nothing");
        assert_eq!(events(2, 9, 4).machine_kills_since(&before), 1, "both");
        assert_eq!(events(1, 9, 4).machine_kills_since(&before), 0, "nobody was killed");
    }
}
