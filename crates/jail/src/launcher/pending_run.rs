//! A request that waits to be started.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::ids::lease::IdLease;
use crate::spec::Jail;
use crate::step::{Step, StepFailed, step};

/// A request that waits to be started.
pub(super) struct PendingRun {
    pub(super) run: u64,
    pub(super) jail: Box<Jail>,
    pub(super) fds: Vec<OwnedFd>,
    pub(super) started: Instant,
}

impl PendingRun {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.jail.timeout.and_then(|timeout| self.started.checked_add(timeout))
    }
}

/// Makes the sandbox user the owner of the standard streams. A program that opens `/dev/stdout` opens the
/// pipe anew, and must own it to do so. Anything but a pipe is refused: it may belong to another user.
pub(super) fn chown_streams(fds: &[OwnedFd], ids: IdLease) -> Result<(), StepFailed> {
    if !ids.is_separate() {
        return Ok(());
    }
    step(Step::Stdio, "", || {
        let (uid, gid) = (rustix::fs::Uid::from_raw(ids.uid), rustix::fs::Gid::from_raw(ids.gid));
        for pipe in fds.get(1..4).ok_or(Errno::BADF)? {
            if FileType::from_raw_mode(rustix::fs::fstat(pipe)?.st_mode) != FileType::Fifo {
                return Err(Errno::INVAL);
            }
            rustix::fs::fchown(pipe, Some(uid), Some(gid))?;
        }
        Ok(())
    })
}
