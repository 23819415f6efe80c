//! The jail's own mounts over its copy of the root tree. Everything is built in folders of ours, and checked, before
//! anything of the tenant's is there.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, UnmountFlags};

use super::Ground;
use crate::bare::{self, errno};
use crate::spec::{HOME, INBOX, Jail, Layer, RootEntry, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::{fault, sys};

const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
/// What is fresh in every jail.
const PLACES: &[&str] = &[WORKSPACE, HOME, "/tmp", "/dev/shm"];

/// As file systems on disks have it. More would let kernel memory, and the time that landlock needs to climb out of
/// a deep folder, grow out of all proportion to the disk.
const BYTES_PER_INODE: u64 = 16 << 10;

/// Mounts everything and makes it the root; gives the inbox, which can be written only through this descriptor.
pub(super) fn build(ground: &Ground<'_>) -> Result<OwnedFd, StepFailed> {
    let inbox = floor(ground)?;
    step(Step::Proc, "", || bare::mounts::proc().map_err(errno))?;
    step(Step::Masks, "/proc", || bare::mounts::masks().map_err(errno))?;
    step(Step::Terminals, "", || bare::mounts::terminals().map_err(errno))?;
    for (mount, destination) in ground.binds {
        step(Step::Binds, destination, || attach(ground, mount, destination))?;
    }
    step(Step::Pivot, "", pivot)?;
    Ok(inbox)
}

/// Builds the root of a warm interpreter, which runs nobody's code: without `/proc`, which would be the launcher's own, and with
/// nothing in the folders that requests bring.
pub(super) fn build_nest(ground: &Ground<'_>, hidden: &[String]) -> Result<OwnedFd, StepFailed> {
    let inbox = floor(ground)?;
    for path in hidden {
        step(Step::Masks, path, || rustix::mount::mount_bind(EMPTY, format!(".{path}")))?;
    }
    step(Step::Pivot, "", pivot)?;
    Ok(inbox)
}

/// The tree and the disk.
fn floor(ground: &Ground<'_>) -> Result<OwnedFd, StepFailed> {
    step(Step::Root, "", || take_root(ground.root))?;
    for entry in ground.tree {
        if let RootEntry::Image { path, .. } = entry {
            step(Step::Root, path, || take_image(path))?;
        }
    }
    step(Step::Disk, "", || disk(ground))
}

/// Goes to stand in a root tree. A copy of a tree from outside is locked; a tree bound over itself is ours to pivot into.
pub(super) fn take_root(root: &str) -> Result<(), Errno> {
    rustix::mount::mount_bind_recursive(root, root)?;
    rustix::process::chdir(root)
}

/// An empty folder of every tree.
const EMPTY: &str = "./sys";

/// Lays a file system of the jail's own over a folder of an image: what lies below shows through, with inodes that no
/// other jail has. A kernel that does not let a jail do that leaves the folder as it is, read-only.
fn take_image(path: &str) -> Result<(), Errno> {
    let target = format!(".{path}");
    // The kernel would take these apart.
    if path.contains([':', ',', '\\']) {
        return Ok(());
    }
    let options = CString::new(format!("userxattr,lowerdir={target}:{EMPTY}")).map_err(|_| Errno::INVAL)?;
    let flags = PLAIN | MountFlags::RDONLY;
    match rustix::mount::mount("overlay", target.as_str(), "overlay", flags, Some(options.as_c_str())) {
        Err(Errno::NODEV | Errno::PERM | Errno::INVAL) => Ok(()),
        laid => laid,
    }
}

/// Everything that can be written. Until it is known what will run it is tiny.
fn disk(ground: &Ground<'_>) -> Result<OwnedFd, Errno> {
    let covered = about_to_be_covered(ground)?;
    let options = match ground.disk_bytes {
        Some(bytes) => disk_options(bytes),
        None => "size=64k,nr_inodes=64,mode=0755".to_owned(),
    };
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    bare::mounts::disk(&options).map_err(errno)?;
    let inbox = inbox()?;
    bare::mounts::places(ground.owner, !ground.has_playground()).map_err(errno)?;
    covered.iter().try_for_each(|(mount, path)| attach(ground, mount, path))?;
    Ok(inbox)
}

/// Gives the disk the size that was asked for, through any of its places.
pub(super) fn size_disk(jail: &Jail) -> Result<(), StepFailed> {
    step(Step::Disk, "", || rustix::mount::mount_remount("/tmp", PLAIN, disk_size(jail.limits.disk_bytes)))
}

pub(crate) fn disk_size(bytes: u64) -> String {
    let bytes = if fault::without(Layer::DiskQuota) { 1 << 30 } else { bytes };
    let inodes = (bytes / BYTES_PER_INODE).max(1_024);
    format!("size={bytes},nr_inodes={inodes}")
}

/// How a disk of that size is mounted.
pub(crate) fn disk_options(bytes: u64) -> String {
    format!("{},mode=0755", disk_size(bytes))
}

/// Where a runner and its arguments will be: the program can read them there and nobody can write.
fn inbox() -> Result<OwnedFd, Errno> {
    let folder = format!(".{HOME}/in");
    rustix::fs::mkdir(&folder, Mode::from_raw_mode(0o755))?;
    let opened = rustix::fs::open(&folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let mount = crate::template::detached(&opened)?;
    sys::mount_setattr(mount.as_fd(), false, libc::MOUNT_ATTR_RDONLY, None)?;
    let target = format!(".{INBOX}");
    rustix::mount::move_mount(&mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(opened)
}

/// Interpreters may live below a folder that is fresh in here (an environment in `/tmp`): held now, put back later.
fn about_to_be_covered<'a>(ground: &Ground<'a>) -> Result<Vec<(OwnedFd, &'a str)>, Errno> {
    let bound = ground.tree.iter().filter_map(|entry| match entry {
        RootEntry::Bind { path, .. } if is_fresh(ground, path) => Some(path.as_str()),
        _ => None,
    });
    bound
        .map(|path| {
            let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let opened = rustix::fs::open(format!(".{path}"), flags, Mode::empty())?;
            Ok((crate::template::detached(&opened)?, path))
        })
        .collect()
}

/// Whether a path lies below a folder that is new for this run.
fn is_fresh(ground: &Ground<'_>, path: &str) -> bool {
    lies_in_place(path) && !(lies_below(path, WORKSPACE) && ground.has_playground())
}

/// Whether a path lies below a folder that is new in every jail.
pub(crate) fn lies_in_place(path: &str) -> bool {
    PLACES.iter().any(|place| lies_below(path, place))
}

fn lies_below(path: &str, place: &str) -> bool {
    path.strip_prefix(place).is_some_and(|rest| rest.starts_with('/'))
}

/// Puts a host folder where it was asked for. Mount points below a fresh folder are made; others must exist.
fn attach(ground: &Ground<'_>, mount: &OwnedFd, destination: &str) -> Result<(), Errno> {
    let target = format!(".{destination}");
    if is_fresh(ground, destination) {
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

/// Makes the tree in which this process stands the root.
pub(super) fn pivot() -> Result<(), Errno> {
    rustix::process::pivot_root(".", ".")?;
    // The old root now lies over the new one; taken away, nothing of the host is left in this namespace.
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}
