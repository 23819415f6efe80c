//! Mounts a jail's own file systems over its copy of the root tree. Everything is built in our own
//! directories, and verified, before any of the tenant's files are there.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use belljar_model::layer::Layer;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, UnmountFlags};

use super::MountPlan;
use crate::spec::{HOME, INBOX, Jail, RootEntry, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys::errno;
use crate::{disk_file, fault, sys};

const NOSUID_NODEV: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
/// Directories that are fresh in every jail.
const FRESH_DIRS: &[&str] = &[WORKSPACE, HOME, "/tmp", "/dev/shm"];

/// Mounts everything and makes it the root. Returns the inbox, which is writable only through this
/// descriptor.
pub(super) fn build_jail_root(plan: &MountPlan<'_>) -> Result<OwnedFd, StepFailed> {
    let inbox = mount_base(plan)?;
    step(Step::Proc, "", || belljar_zygote::mounts::mount_proc().map_err(errno))?;
    step(Step::Masks, "/proc", || belljar_zygote::mounts::mask_proc().map_err(errno))?;
    step(Step::Terminals, "", || belljar_zygote::mounts::mount_devpts().map_err(errno))?;
    for (mount, destination) in plan.binds {
        step(Step::Binds, destination, || attach_mount(plan, mount, destination))?;
    }
    step(Step::Pivot, "", pivot)?;
    Ok(inbox)
}

/// Builds the root of a warm interpreter, which runs no tenant code: without `/proc`, which would show the
/// launcher's namespace, and with the directories that requests supply hidden.
pub(super) fn build_zygote_root(plan: &MountPlan<'_>, hidden: &[String]) -> Result<OwnedFd, StepFailed> {
    let inbox = mount_base(plan)?;
    for path in hidden {
        step(Step::Masks, path, || rustix::mount::mount_bind(EMPTY_DIR, format!(".{path}")))?;
    }
    step(Step::Pivot, "", pivot)?;
    Ok(inbox)
}

/// Mounts the tree and the disk, and returns the inbox.
fn mount_base(plan: &MountPlan<'_>) -> Result<OwnedFd, StepFailed> {
    step(Step::Root, "", || enter_root(plan.root_path))?;
    for entry in plan.tree {
        if let RootEntry::Image { path, .. } = entry {
            step(Step::Root, path, || overlay_image(path))?;
        }
    }
    step(Step::Disk, "", || mount_disk(plan))
}

/// Enters a root tree. The mounts of a copy from outside are locked; a tree bound over itself can be pivoted
/// into.
pub(super) fn enter_root(root: &str) -> Result<(), Errno> {
    rustix::mount::mount_bind_recursive(root, root)?;
    rustix::process::chdir(root)
}

/// An empty directory in every tree.
const EMPTY_DIR: &str = "./sys";

/// Mounts a private overlay over a directory of an image: the content shows through, with inodes that no
/// other jail has. If the kernel does not let a jail do that, the directory stays as it is, read-only.
fn overlay_image(path: &str) -> Result<(), Errno> {
    let target = format!(".{path}");
    // The kernel would interpret these characters in the mount options.
    if path.contains([':', ',', '\\']) {
        return Ok(());
    }
    let options =
        CString::new(format!("userxattr,lowerdir={target}:{EMPTY_DIR}")).map_err(|_| Errno::INVAL)?;
    let flags = NOSUID_NODEV | MountFlags::RDONLY;
    match rustix::mount::mount("overlay", target.as_str(), "overlay", flags, Some(options.as_c_str())) {
        Err(Errno::NODEV | Errno::PERM | Errno::INVAL) => Ok(()),
        laid => laid,
    }
}

/// Mounts the disk, which holds everything writable. It stays tiny until it is known what will run.
fn mount_disk(plan: &MountPlan<'_>) -> Result<OwnedFd, Errno> {
    let covered = detach_covered_binds(plan)?;
    match (plan.disk_mount, plan.disk_bytes) {
        (Some(mount), _) => {
            let target = format!(".{HOME}");
            rustix::mount::move_mount(mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        }
        (None, Some(bytes)) => mount_tmpfs(&disk_options(bytes))?,
        (None, None) => mount_tmpfs("size=64k,nr_inodes=64,mode=0755")?,
    }
    let inbox = create_inbox()?;
    belljar_zygote::mounts::bind_disk_dirs(plan.owner, !plan.has_host_workspace()).map_err(errno)?;
    covered.iter().try_for_each(|(mount, path)| attach_mount(plan, mount, path))?;
    Ok(inbox)
}

fn mount_tmpfs(options: &str) -> Result<(), Errno> {
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    belljar_zygote::mounts::mount_disk(&options).map_err(errno)
}

/// Resizes the disk to the jail's limit, through any of its mount points. A disk in a file has its size already.
pub(super) fn resize_disk(jail: &Jail) -> Result<(), StepFailed> {
    if jail.has_disk_file {
        return Ok(());
    }
    step(Step::Disk, "", || {
        rustix::mount::mount_remount("/tmp", NOSUID_NODEV, tmpfs_options(jail.limits.disk_bytes))
    })
}

pub(crate) fn tmpfs_options(bytes: u64) -> String {
    let bytes = if fault::is_left_out(Layer::DiskQuota) { 1 << 30 } else { bytes };
    let inodes = disk_file::inodes(bytes);
    format!("size={bytes},nr_inodes={inodes}")
}

/// Returns the mount options of a disk of this size.
pub(crate) fn disk_options(bytes: u64) -> String {
    format!("{},mode=0755", tmpfs_options(bytes))
}

/// Creates the inbox, which the program can read and not write.
fn create_inbox() -> Result<OwnedFd, Errno> {
    let folder = format!(".{HOME}/in");
    rustix::fs::mkdir(&folder, Mode::from_raw_mode(0o755))?;
    let opened = rustix::fs::open(&folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let mount = crate::root_trees::detached(&opened)?;
    sys::mount_setattr(mount.as_fd(), false, libc::MOUNT_ATTR_RDONLY, None)?;
    let target = format!(".{INBOX}");
    rustix::mount::move_mount(&mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(opened)
}

/// Detaches interpreters that are mounted below a fresh directory (a virtual environment in `/tmp`), to
/// attach them again later.
fn detach_covered_binds<'a>(plan: &MountPlan<'a>) -> Result<Vec<(OwnedFd, &'a str)>, Errno> {
    let bound = plan.tree.iter().filter_map(|entry| match entry {
        RootEntry::Bind { path, .. } if is_in_fresh_dir(plan, path) => Some(path.as_str()),
        _ => None,
    });
    bound
        .map(|path| {
            let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let opened = rustix::fs::open(format!(".{path}"), flags, Mode::empty())?;
            Ok((crate::root_trees::detached(&opened)?, path))
        })
        .collect()
}

/// Returns whether a path lies below a directory that is fresh in this jail.
fn is_in_fresh_dir(plan: &MountPlan<'_>, path: &str) -> bool {
    is_below_fresh_dir(path) && !(is_below(path, WORKSPACE) && plan.has_host_workspace())
}

/// Returns whether a path lies below a directory that is fresh in every jail.
pub(crate) fn is_below_fresh_dir(path: &str) -> bool {
    FRESH_DIRS.iter().any(|folder| is_below(path, folder))
}

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Attaches a mount at its destination. Mount points below a fresh directory are created; others must exist.
pub(super) fn attach_mount(plan: &MountPlan<'_>, mount: &OwnedFd, destination: &str) -> Result<(), Errno> {
    let target = format!(".{destination}");
    if is_in_fresh_dir(plan, destination) {
        make_mount_point(mount, &target)?;
    }
    rustix::mount::move_mount(mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

fn make_mount_point(mount: &OwnedFd, target: &str) -> Result<(), Errno> {
    let make_folder = |path: &str| match rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    };
    for (end, _) in target.match_indices('/').skip(1) {
        match make_folder(&target[..end]) {
            Ok(()) | Err(Errno::ROFS) => {}
            Err(errno) => return Err(errno),
        }
    }
    if rustix::fs::fstat(mount)?.st_mode & libc::S_IFMT == libc::S_IFDIR {
        return make_folder(target);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    rustix::fs::open(target, flags, Mode::from_raw_mode(0o644)).map(drop)
}

/// Makes the current directory the root.
pub(super) fn pivot() -> Result<(), Errno> {
    rustix::process::pivot_root(".", ".")?;
    // The old root now covers the new one. Unmounting it removes every host mount from this namespace.
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}
