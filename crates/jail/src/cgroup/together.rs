//! The memory of all groups together: they live below one folder, whose limit leaves room for the server and everything else
//! on the machine. A process that is killed because of that limit has not used up its own.

use super::{Controller, Group, Hierarchy};

/// What is kept for others: a tenth, and no less than this where the machine has twice as much.
const KEPT_BYTES: u64 = 512 << 20;

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

    /// Limits the memory of all groups together.
    pub fn limit_all(&self, memory_bytes: u64) {
        for place in self.places.iter().filter(|place| place.has(Controller::Memory)) {
            // Without it the limits of each group still hold.
            let _limited = place.limit_all(memory_bytes);
        }
    }
}

impl Group {
    /// Whether a process was killed for want of memory although the group had not used up its own: all groups together had.
    pub fn was_killed_from_above(&self) -> bool {
        let place = self.with(Controller::Memory).filter(|_| self.oom_kills() > 0);
        place.is_some_and(|place| place.was_killed_from_above(self))
    }
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let kilobytes = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    kilobytes.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}
