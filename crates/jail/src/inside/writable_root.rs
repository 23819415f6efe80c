//! Builds a writable root: an overlay over an image, with its upper layer on the disk of the sandbox.
//!
//! ```text
//! root tree (read-only)                 the overlay, which becomes the root
//!   home/sandbox  ◀── disk                lower: the image, by an id-mapped mount
//!     upper, work ──────────────────────▶ upper: mount points, files of ours, then what programs change
//!     workspace, tmp, shm, home, in ────▶ /workspace /tmp /dev/shm /home/sandbox /run/belljar
//!   dev, sys, packages ─────────────────▶ the same, read-only
//! ```
//!
//! Everything on a path of ours is in the upper layer before the image is visible, so nothing in an image decides what
//! such a path means. PID 1 mounts the overlay in its own user namespace: what the overlay does, it does with the
//! rights of the sandbox's root user and no others. `/proc`, `/dev` and `/sys` are read-only mounts, because
//! Landlock allows this root user to write everywhere else.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags};

use super::{MountPlan, mounts};
use crate::root_trees;
use crate::spec::{HOME, INBOX, RootEntry, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, errno};

/// Where the disk is until the root is changed.
const DISK: &str = "home/sandbox";
/// Where the new root is until then.
const ROOT: &str = "home/sandbox/root";
/// Directories of the disk beside the layers, each with its place and mode.
const DISK_DIRS: [(&str, &str, u32); 4] = [
    ("workspace", WORKSPACE, 0o755),
    ("tmp", "/tmp", 0o1777),
    ("shm", "/dev/shm", 0o1777),
    ("home", HOME, 0o700),
];
/// Directories of the root tree that every root has, read-only.
const KEPT: [&str; 2] = ["/dev", "/sys"];

/// Builds the root and changes to it. Returns the inbox.
pub(super) fn build(plan: &MountPlan<'_>) -> Result<OwnedFd, StepFailed> {
    step(Step::Root, "", || mounts::enter_root(plan.root_path))?;
    step(Step::Disk, "", || mount_disk(plan))?;
    step(Step::Root, "to write", || mount_overlay(plan))?;
    for path in KEPT {
        step(Step::Binds, path, || attach_copy(&format!(".{path}"), path))?;
    }
    let inbox = step(Step::Disk, "", bind_disk_dirs)?;
    for entry in plan.tree {
        if let RootEntry::Packages { path, .. } | RootEntry::Bind { path, .. } = entry {
            step(Step::Binds, path, || attach_copy(&format!(".{path}"), path))?;
        }
    }
    step(Step::Root, "", || rustix::process::chdir(ROOT))?;
    step(Step::Proc, "", || belljar_zygote::mounts::mount_read_only_proc().map_err(errno))?;
    step(Step::Masks, "/proc", || belljar_zygote::mounts::mask_proc().map_err(errno))?;
    step(Step::Terminals, "", || belljar_zygote::mounts::mount_devpts().map_err(errno))?;
    for (mount, destination) in plan.binds {
        step(Step::Binds, destination, || mounts::attach_mount(plan, mount, destination))?;
    }
    step(Step::Pivot, "", mounts::pivot)?;
    Ok(inbox)
}

fn mount_disk(plan: &MountPlan<'_>) -> Result<(), Errno> {
    let mount = plan.disk_mount.ok_or(Errno::NODEV)?;
    rustix::mount::move_mount(mount, "", CWD, DISK, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    let layers = ["lower", "upper", "work", "root"].map(|name| (name, 0o755));
    let dirs = DISK_DIRS.map(|(name, _, mode)| (name, mode));
    for (name, mode) in layers.into_iter().chain(dirs).chain([("in", 0o755)]) {
        make_dir(&format!("{DISK}/{name}"), mode)?;
    }
    Ok(())
}

fn make_dir(path: &str, mode: u32) -> Result<(), Errno> {
    rustix::fs::mkdir(path, Mode::from_raw_mode(0o700))?;
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
}

/// Fills the upper layer with what is ours, and mounts it over the image.
fn mount_overlay(plan: &MountPlan<'_>) -> Result<(), Errno> {
    let image = plan.lower_mount.ok_or(Errno::NODEV)?;
    let lower = format!("{DISK}/lower");
    rustix::mount::move_mount(image, "", CWD, lower, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    let upper = format!("{DISK}/upper");
    for entry in plan.tree {
        root_trees::create_in_upper_layer(&upper, entry)?;
    }
    let options =
        c"userxattr,lowerdir=home/sandbox/lower,upperdir=home/sandbox/upper,workdir=home/sandbox/work";
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("overlay", ROOT, "overlay", flags, Some(options))
}

/// Attaches a copy of a part of the root tree, with everything mounted in it, to the new root.
fn attach_copy(source: &str, path: &str) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let copy = root_trees::detached(&rustix::fs::open(source, flags, Mode::empty())?)?;
    attach(&copy, path)
}

fn attach(mount: &OwnedFd, path: &str) -> Result<(), Errno> {
    let target = format!("{ROOT}{path}");
    rustix::mount::move_mount(mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Binds the directories of the disk in their places. Returns the inbox, which is read-only in its place.
fn bind_disk_dirs() -> Result<OwnedFd, Errno> {
    for (name, path, _) in DISK_DIRS {
        rustix::mount::mount_bind(format!("{DISK}/{name}"), format!("{ROOT}{path}"))?;
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let inbox = rustix::fs::open(format!("{DISK}/in"), flags, Mode::empty())?;
    let mount = root_trees::detached(&inbox)?;
    sys::mount_setattr(std::os::fd::AsFd::as_fd(&mount), false, libc::MOUNT_ATTR_RDONLY, None)?;
    attach(&mount, INBOX)?;
    Ok(inbox)
}
