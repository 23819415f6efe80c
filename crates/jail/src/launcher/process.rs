//! A process of a jail, as the launcher holds it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::process::Signal;

use crate::sys;

/// A process of a jail: its pid on the host and its pidfd.
pub(super) struct ProcessHandle {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
}

impl ProcessHandle {
    pub(super) fn kill(&self) {
        // This fails only if the process has already exited.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    pub(super) fn has_exited(&self) -> bool {
        sys::is_readable(self.pidfd.as_fd())
    }
}
