//! Sandboxes, the jails that stay until they are closed: the state that the launcher keeps for one, and
//! queries about it.

use std::os::fd::OwnedFd;
use std::time::Instant;

use belljar_model::stats::SandboxStats;
use rustix::fs::{Mode, OFlags};

use super::pause_queue::PauseQueue;
use super::setup::LauncherContext;
use crate::cgroup::{Group, MemoryEvents};
use crate::spec::JailEnding;

/// The additional state of a run that is a sandbox.
pub(super) struct SandboxRun {
    /// Its disk, once the guest runs.
    disk: Option<OwnedFd>,
    pub(super) pause_queue: PauseQueue,
    /// The out-of-memory events at the last query.
    last_memory_events: Option<MemoryEvents>,
    /// How many processes were killed although the sandbox was below its own memory limit.
    machine_memory_kills: u64,
}

impl SandboxRun {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            disk: None,
            pause_queue: PauseQueue::new(now),
            last_memory_events: None,
            machine_memory_kills: 0,
        }
    }

    /// Closes the disk before the sandbox's processes do, so that the launcher does not have to free what is
    /// on it.
    pub(super) fn close_disk(&mut self) {
        self.disk = None;
    }

    /// Opens the disk, once the guest runs. Whatever the tenant does, `/tmp` is the mount that the launcher's
    /// side made.
    pub(super) fn open_disk(&mut self, context: &LauncherContext, pid: i32) {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.disk = rustix::fs::openat(&context.proc, format!("{pid}/root/tmp"), flags, Mode::empty()).ok();
    }

    /// Returns its usage so far.
    pub(super) fn stats(&mut self, group: Option<&Group>) -> SandboxStats {
        let disk = self.disk.as_ref().and_then(|disk| rustix::fs::fstatfs(disk).ok());
        let usage = group.map(Group::usage).unwrap_or_default();
        let memory = group.map(Group::memory_events).unwrap_or_default();
        let before = self
            .last_memory_events
            .replace(memory)
            .or(group.map(Group::memory_events_before))
            .unwrap_or_default();
        self.machine_memory_kills += memory.machine_kills_since(&before);
        SandboxStats {
            cpu: usage.cpu,
            memory_bytes: group.and_then(Group::memory_in_use),
            peak_memory_bytes: usage.peak_memory_bytes,
            // Without PID 1, which is the guest.
            processes: group.and_then(Group::process_count).map(|all| all.saturating_sub(1)),
            peak_processes: usage.peak_processes.map(|all| all.saturating_sub(1)),
            disk_bytes: disk.map(|disk| (disk.f_blocks - disk.f_bfree) * disk.f_bsize as u64),
            memory_kills: memory.kills.saturating_sub(self.machine_memory_kills),
            machine_memory_kills: self.machine_memory_kills,
            forks_refused: group.map_or(0, Group::forks_refused),
            // A disk in a file keeps some free blocks for itself.
            disk_full: disk.is_some_and(|disk| disk.f_bavail == 0 || disk.f_ffree == 0),
        }
    }
}

/// Returns how a sandbox ended that was not closed, from the wait status of its PID 1.
pub(super) fn sandbox_ending(status: i32, out_of_memory: Option<JailEnding>) -> JailEnding {
    if libc::WIFEXITED(status) {
        return JailEnding::Exited(libc::WEXITSTATUS(status) as u8);
    }
    out_of_memory.unwrap_or(JailEnding::Signalled(libc::WTERMSIG(status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ending_follows_the_status_of_pid_1() {
        assert_eq!(sandbox_ending(3 << 8, Some(JailEnding::Memory)), JailEnding::Exited(3));
        assert_eq!(sandbox_ending(libc::SIGKILL, Some(JailEnding::Memory)), JailEnding::Memory);
        assert_eq!(sandbox_ending(libc::SIGKILL, None), JailEnding::Signalled(libc::SIGKILL));
    }
}
