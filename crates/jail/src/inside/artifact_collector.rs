//! Collects the artifacts of a zygote's child after every process in its jail has ended. The collector runs
//! as the sandbox user, with access to only the disk and a pipe.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use super::{artifacts, init, privileges};
use crate::seccomp::SeccompFilter;
use crate::spec::{CollectionRules, INNER_UID};
use crate::sys;

/// Input of a collector.
pub(crate) struct ArtifactCollector<'a> {
    pub(crate) rules: &'a CollectionRules,
    /// User namespace of the jail, and the mount namespace of its namespace set.
    pub(crate) user: &'a OwnedFd,
    pub(crate) mounts: &'a OwnedFd,
    /// The workspace.
    pub(crate) disk: &'a OwnedFd,
    pub(crate) pipe: &'a OwnedFd,
    pub(crate) filter: &'a SeccompFilter,
}

/// Runs as a collector; never returns. If it fails, nothing is collected.
pub(crate) fn run_collector(collector: &ArtifactCollector<'_>) -> ! {
    let confined = confine(collector);
    if confined.is_ok() {
        artifacts::collect(collector.rules, collector.disk.as_fd(), collector.pipe);
    }
    sys::exit_now(confined.is_err().into())
}

fn confine(collector: &ArtifactCollector<'_>) -> Result<(), Errno> {
    let ArtifactCollector { user, mounts, disk, pipe, .. } = *collector;
    sys::reserve_standard_fds()?;
    init::close_all_but(4, [user, mounts, disk, pipe].into_iter())?;
    sys::setns(user.as_fd(), libc::CLONE_NEWUSER)?;
    sys::setns(mounts.as_fd(), libc::CLONE_NEWNS)?;
    privileges::become_user(INNER_UID, INNER_UID)?;
    init::die_with_launcher()?;
    privileges::drop_capabilities()?;
    privileges::set_no_new_privs()?;
    collector.filter.install()
}
