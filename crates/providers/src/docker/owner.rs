//! Which process a container belongs to: so that what a dead one left is removed, and what a living one has is not.

use std::os::unix::fs::MetadataExt;

use belljar_jail::cgroup::started;

/// A process of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    /// The machine's boot and the namespace in which the process has its number.
    place: String,
    pid: u32,
    /// When it started: its number may be another's later.
    start: u64,
}

impl Owner {
    pub(super) fn this_process() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino());
        let pid = std::process::id();
        Self { place: format!("{}/{namespace}", boot.trim()), pid, start: started(pid).unwrap_or(0) }
    }

    /// As a label.
    pub(super) fn text(&self) -> String {
        format!("{}/{}/{}", self.place, self.pid, self.start)
    }

    /// Whether whoever wrote this label is surely no more.
    pub(super) fn outlived(&self, label: &str) -> bool {
        let mut parts = label.splitn(4, '/');
        let (Some(boot), Some(namespace), Some(pid), Some(start)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return true;
        };
        let (own_boot, own_namespace) = self.place.split_once('/').unwrap_or_default();
        if boot != own_boot {
            return true;
        }
        // Of another namespace's processes nothing is known here.
        let Ok(pid) = pid.parse() else { return true };
        namespace == own_namespace && started(pid).is_none_or(|found| found.to_string() != start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_dead_are_outlived() {
        let me = Owner::this_process();
        assert!(!me.outlived(&me.text()));
        assert!(me.outlived(&Owner { start: 1, ..me.clone() }.text()), "another one's number");
        assert!(me.outlived(&Owner { pid: 0x7fff_fff0, ..me.clone() }.text()));
        assert!(me.outlived(&format!("other-boot/{}/1/1", 4026531836_u64)));
        let elsewhere = format!("{}/7/4194303/1", me.place.split_once('/').unwrap().0);
        assert!(!me.outlived(&elsewhere), "nothing is known of another namespace");
    }
}
