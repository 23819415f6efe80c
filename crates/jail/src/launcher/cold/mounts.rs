//! Detached mounts for a cold jail, with the ids of the jail: host folders, its disk in a file, and the image of a
//! writable root.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::launcher::ids::lease::IdLease;
use crate::launcher::ids::map::{IdExtent, create_mount_map};
use crate::launcher::setup::LauncherContext;
use crate::root_trees::{self, BuiltRoot};
use crate::spec::{HostBind, RootEntry};
use crate::step::{Step, StepFailed, step};
use crate::sys;

pub(super) fn open_host_folders(
    context: &LauncherContext,
    binds: &[HostBind],
    ids: IdLease,
) -> Result<Vec<(OwnedFd, String)>, StepFailed> {
    let bind = |bind: &HostBind| {
        let (source, mount) = step(Step::HostFolder, &bind.source, || open_host_folder(context, bind))?;
        if context.ids.is_host_root() {
            step(Step::Owners, &bind.source, || map_owner(context, &source, &mount, bind.writable, ids))?;
        }
        Ok((mount, bind.destination.clone()))
    };
    binds.iter().map(bind).collect()
}

/// Opens a host folder and creates a detached mount of it. If the launcher runs as the host's root, mounts
/// below the folder are left out: they may belong to other users, and may not support id mapping.
fn open_host_folder(context: &LauncherContext, bind: &HostBind) -> Result<(OwnedFd, OwnedFd), Errno> {
    let source = root_trees::open_host(&bind.source)?;
    let detach = if context.ids.is_host_root() {
        root_trees::detached_without_submounts
    } else {
        root_trees::detached
    };
    let mount = detach(&source)?;
    let mut attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    if !bind.writable {
        attributes |= libc::MOUNT_ATTR_RDONLY;
    }
    sys::mount_setattr(mount.as_fd(), true, attributes, None)?;
    Ok((source, mount))
}

/// Maps ids on the mount: the owner's files appear as the sandbox user's, and files created inside belong to
/// the owner.
fn map_owner(
    context: &LauncherContext,
    source: &OwnedFd,
    mount: &OwnedFd,
    writable: bool,
    ids: IdLease,
) -> Result<(), Errno> {
    let owner = rustix::fs::fstat(source)?;
    let (uids, gids) = (IdExtent::one(owner.st_uid, ids.uid), IdExtent::one(owner.st_gid, ids.gid));
    let map = create_mount_map(&context.proc, &[uids], &[gids])?;
    match sys::mount_setattr(mount.as_fd(), false, 0, Some(map.as_fd())) {
        // The file system does not support id mapping. A read-only mount is then read with the rights of
        // "others".
        Err(Errno::INVAL) if !writable => Ok(()),
        mapped => mapped,
    }
}

/// Returns a detached mount of the image of a writable root, on which ids are those inside.
pub(super) fn open_lower_layer(
    context: &LauncherContext,
    root: &BuiltRoot,
    ids: IdLease,
) -> Result<OwnedFd, StepFailed> {
    let source = root.tree.iter().find_map(|entry| match entry {
        RootEntry::Lower { source } => Some(source.as_str()),
        _ => None,
    });
    let Some(source) = source else {
        return Err(StepFailed::new(Step::Root, "without an image", Errno::INVAL));
    };
    let mount = step(Step::Root, "", || {
        let mount = root_trees::detached_without_submounts(&root_trees::open_host(source)?)?;
        let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
        sys::mount_setattr(mount.as_fd(), false, attributes, None)?;
        Ok(mount)
    })?;
    step(Step::Owners, "of the image", || {
        let (uids, gids) = ids.maps();
        let map = create_mount_map(&context.proc, &uids, &gids)?;
        sys::mount_setattr(mount.as_fd(), false, 0, Some(map.as_fd()))
    })?;
    Ok(mount)
}

/// Maps ids on the mount of a disk in a file, where ids are those inside. This works only as the host's root, and
/// only for a mount that was never attached.
pub(super) fn map_disk_owners(context: &LauncherContext, mount: &OwnedFd, ids: IdLease) -> Result<(), Errno> {
    if !context.ids.is_host_root() || !ids.is_separate() {
        return Err(Errno::PERM);
    }
    let (uids, gids) = ids.maps();
    let map = create_mount_map(&context.proc, &uids, &gids)?;
    sys::mount_setattr(mount.as_fd(), false, 0, Some(map.as_fd()))
}
