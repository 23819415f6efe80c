//! Kills the processes in a group. Processes that are still there after a run have escaped its other means of
//! termination.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Group, files, v2};

/// How often members are listed and killed before it is left to the next sweep. Where processes are counted,
/// the group cannot fork in the meantime.
const ROUNDS: usize = 4;

/// Kills the members of a group; they take time to die.
pub(super) fn kill_members(parent: BorrowedFd<'_>, group: &str) {
    if files::write(parent, &format!("{group}/cgroup.kill"), "1").is_ok() {
        return;
    }
    // If this hierarchy does not count processes, another one does, or the rounds continue.
    let _no_more = files::write(parent, &format!("{group}/pids.max"), "0");
    for _ in 0..ROUNDS {
        let members = members(parent, group);
        if members.is_empty() {
            return;
        }
        members.into_iter().for_each(|pid| kill(parent, group, pid));
    }
}

/// Kills a member, but not another process that has reused its pid.
fn kill(parent: BorrowedFd<'_>, group: &str, pid: i32) {
    let Some(pidfd) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return;
    };
    if members(parent, group).contains(&pid) {
        // Killing fails only if the process has already exited, which is the desired state.
        let _killed = pidfd_send_signal(&pidfd, Signal::KILL);
    }
}

fn members(parent: BorrowedFd<'_>, group: &str) -> Vec<i32> {
    let text = files::read(parent, &format!("{group}/{}", v2::MEMBERS)).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

impl Group {
    /// Returns the processes in the group.
    pub fn members(&self) -> Vec<i32> {
        self.dirs().next().map(|dir| members(dir.fd.as_fd(), &self.number)).unwrap_or_default()
    }

    /// Kills the processes left in the group and removes it. Returns it if a process is still dying.
    ///
    /// # Errors
    /// The group, to be tried again later.
    pub fn kill_and_remove(self) -> Result<(), Group> {
        if !self.is_empty() {
            self.kill();
        }
        self.remove()
    }

    /// Kills all processes in the group.
    pub fn kill(&self) {
        for dir in self.dirs() {
            kill_members(dir.fd.as_fd(), &self.number);
        }
    }
}
