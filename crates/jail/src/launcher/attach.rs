//! Mounts packages into the running jail of a sandbox.
//!
//! ```text
//! detached read-only mount ─▶ enter the jail's mount namespace ─▶ open the mount point ─▶ move the mount there ─▶ return
//! ```
//!
//! The mount point is in the root tree, which is read-only and made by the launcher: no program of the jail can
//! change what its path means, and links are not followed. Nothing else is resolved there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::MoveMountFlags;

use super::setup::LauncherContext;
use crate::root_trees;
use crate::step::{Step, StepFailed, step};
use crate::sys;

/// Mounts the packages in `source`, a host directory, at `path` in the jail with this PID 1.
pub(super) fn attach_packages(
    context: &LauncherContext,
    init: BorrowedFd<'_>,
    source: &str,
    path: &str,
) -> Result<(), StepFailed> {
    let mount = step(Step::Binds, path, || root_trees::detached_packages(source))?;
    let own = step(Step::Namespaces, "mount", || {
        rustix::fs::openat(&context.proc, "self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    })?;
    // A pidfd, because another process may have the pid by now.
    step(Step::Namespaces, "mount", || sys::setns(init, libc::CLONE_NEWNS))?;
    let attached = step(Step::Binds, path, || attach_mount(&mount, path));
    if sys::setns(own.as_fd(), libc::CLONE_NEWNS).is_err() {
        // In the namespace of a jail, the launcher must not start anything. All jails end with it.
        sys::exit_now(1);
    }
    attached
}

/// Moves a detached mount to a directory of the current mount namespace.
fn attach_mount(mount: &OwnedFd, path: &str) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let target = rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)?;
    let by_fd = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", &target, "", by_fd)
}
