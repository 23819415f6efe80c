//! Which process a container belongs to, so that containers of dead processes are removed and those of
//! running ones are not.

use std::os::unix::fs::MetadataExt;

use belljar_jail::cgroup::started;

/// The identity of a process on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    /// The boot id and the PID namespace in which the pid is valid.
    place: String,
    pid: u32,
    /// Start time, because pids are reused.
    start: u64,
}

impl Owner {
    pub(super) fn this_process() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino());
        let pid = std::process::id();
        Self { place: format!("{}/{namespace}", boot.trim()), pid, start: started(pid).unwrap_or(0) }
    }

    /// Returns the label text.
    pub(super) fn text(&self) -> String {
        format!("{}/{}/{}", self.place, self.pid, self.start)
    }

    /// Returns whether the process that wrote this label is certainly gone.
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
        // Processes in another PID namespace cannot be checked.
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
        assert!(me.outlived(&Owner { start: 1, ..me.clone() }.text()), "the pid was reused");
        assert!(me.outlived(&Owner { pid: 0x7fff_fff0, ..me.clone() }.text()));
        assert!(me.outlived(&format!("other-boot/{}/1/1", 4026531836_u64)));
        let elsewhere = format!("{}/7/4194303/1", me.place.split_once('/').unwrap().0);
        assert!(!me.outlived(&elsewhere), "processes in another PID namespace cannot be checked");
    }
}
