//! Which process a container belongs to, so that containers of dead processes are removed and those of
//! running ones are not.

use std::os::unix::fs::MetadataExt;

use belljar_jail::cgroup::process_start_time;

/// The identity of a process on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessIdentity {
    /// The boot id and the PID namespace in which the pid is valid.
    boot_and_namespace: String,
    pid: u32,
    /// Start time, because pids are reused.
    start_time: u64,
}

impl ProcessIdentity {
    pub(super) fn this_process() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino());
        let pid = std::process::id();
        Self {
            boot_and_namespace: format!("{}/{namespace}", boot.trim()),
            pid,
            start_time: process_start_time(pid).unwrap_or(0),
        }
    }

    /// Returns the label text.
    pub(super) fn to_label(&self) -> String {
        format!("{}/{}/{}", self.boot_and_namespace, self.pid, self.start_time)
    }

    /// Returns whether the process that wrote this label is certainly gone.
    pub(super) fn is_owner_gone(&self, label: &str) -> bool {
        let mut parts = label.splitn(4, '/');
        let (Some(boot), Some(namespace), Some(pid), Some(start)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return true;
        };
        let (own_boot, own_namespace) = self.boot_and_namespace.split_once('/').unwrap_or_default();
        if boot != own_boot {
            return true;
        }
        // Processes in another PID namespace cannot be checked.
        let Ok(pid) = pid.parse() else { return true };
        namespace == own_namespace && process_start_time(pid).is_none_or(|found| found.to_string() != start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_processes_are_gone() {
        let me = ProcessIdentity::this_process();
        assert!(!me.is_owner_gone(&me.to_label()));
        assert!(
            me.is_owner_gone(&ProcessIdentity { start_time: 1, ..me.clone() }.to_label()),
            "the pid was reused"
        );
        assert!(me.is_owner_gone(&ProcessIdentity { pid: 0x7fff_fff0, ..me.clone() }.to_label()));
        assert!(me.is_owner_gone(&format!("other-boot/{}/1/1", 4026531836_u64)));
        let elsewhere = format!("{}/7/4194303/1", me.boot_and_namespace.split_once('/').unwrap().0);
        assert!(!me.is_owner_gone(&elsewhere), "processes in another PID namespace cannot be checked");
    }
}
