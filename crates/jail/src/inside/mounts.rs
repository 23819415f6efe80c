//! The jail's own mounts over its copy of the root tree. Everything is built in folders of ours, and checked, before
//! anything of the tenant's is there.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, UnmountFlags};

use super::Ground;
use crate::fault;
use crate::spec::{HOME, INBOX, Jail, Layer, RootEntry, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys;
use crate::template::DISK;

const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
/// Folders of the disk, where each is mounted, and its mode.
const PLACES: &[(&str, &str, u32)] = &[
    ("workspace", WORKSPACE, 0o755),
    ("home", HOME, 0o700),
    ("tmp", "/tmp", 0o1777),
    ("shm", "/dev/shm", 0o1777),
];

/// As file systems on disks have it. More would let kernel memory, and the time that landlock needs to climb out of
/// a deep folder, grow out of all proportion to the disk.
const BYTES_PER_INODE: u64 = 16 << 10;

/// What `/proc` shows of the host to everybody. Files that only root may open need no mask: root has no id in here.
const MASKED_FILES: &[&str] =
    &["cmdline", "interrupts", "iomem", "ioports", "kallsyms", "key-users", "keys", "modules", "softirqs"];
const MASKED_FOLDERS: &[&str] = &["acpi", "asound", "bus", "driver", "fs", "irq", "scsi"];
const PROC_MAGIC: i64 = 0x9fa0;

/// Mounts everything and makes it the root; gives the inbox, which can be written only through this descriptor.
pub(super) fn build(ground: &Ground<'_>) -> Result<OwnedFd, StepFailed> {
    let root = ground.root;
    let inbox = floor(ground)?;
    step(Step::Proc, "", || proc(root))?;
    step(Step::Masks, "/proc", || masks(root))?;
    step(Step::Terminals, "", || {
        let options = c"newinstance,ptmxmode=0666,mode=0620";
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        rustix::mount::mount("devpts", format!("{root}/dev/pts"), "devpts", flags, Some(options))
    })?;
    for (mount, destination) in ground.binds {
        step(Step::Binds, destination, || attach(ground, mount, destination))?;
    }
    step(Step::Pivot, "", || pivot(root))?;
    Ok(inbox)
}

/// The same for a warm interpreter, which runs nobody's code: without `/proc`, which would be the launcher's own.
pub(super) fn build_nest(ground: &Ground<'_>) -> Result<OwnedFd, StepFailed> {
    let inbox = floor(ground)?;
    step(Step::Pivot, "", || pivot(ground.root))?;
    Ok(inbox)
}

/// The tree and the disk.
fn floor(ground: &Ground<'_>) -> Result<OwnedFd, StepFailed> {
    let root = ground.root;
    // A copy of a tree from outside is locked; a tree bound over itself is ours to pivot into.
    step(Step::Root, "", || rustix::mount::mount_bind_recursive(root, root))?;
    step(Step::Disk, "", || disk(ground))
}

/// One tmpfs for everything that can be written, so that one size is the limit. It is mounted beside the new root and
/// goes out of sight with the old one; only the places in it stay. Until it is known what will run it is tiny.
fn disk(ground: &Ground<'_>) -> Result<OwnedFd, Errno> {
    let root = ground.root;
    let covered = about_to_be_covered(ground)?;
    let size = ground.disk_bytes.map_or_else(|| "size=64k,nr_inodes=64".to_owned(), disk_size);
    let options = CString::new(format!("{size},mode=0755")).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount("tmpfs", DISK, "tmpfs", PLAIN, Some(options.as_c_str()))?;
    for (name, path, mode) in PLACES {
        let folder = format!("{DISK}/{name}");
        rustix::fs::mkdir(&folder, Mode::from_raw_mode(0o700))?;
        rustix::fs::chmod(&folder, Mode::from_raw_mode(*mode))?;
        let (uid, gid) = ground.owner;
        rustix::fs::chown(&folder, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        if *path == WORKSPACE && ground.has_playground() {
            continue;
        }
        rustix::mount::mount_bind(&folder, format!("{root}{path}"))?;
    }
    covered.iter().try_for_each(|(mount, path)| attach(ground, mount, path))?;
    inbox(root)
}

/// Gives the disk the size that was asked for, through any of its places.
pub(super) fn size_disk(jail: &Jail) -> Result<(), StepFailed> {
    step(Step::Disk, "", || rustix::mount::mount_remount("/tmp", PLAIN, disk_size(jail.limits.disk_bytes)))
}

fn disk_size(bytes: u64) -> String {
    let bytes = if fault::without(Layer::DiskQuota) { 1 << 30 } else { bytes };
    let inodes = (bytes / BYTES_PER_INODE).max(1_024);
    format!("size={bytes},nr_inodes={inodes}")
}

/// Where a runner and its arguments will be: the program can read them there and nobody can write.
fn inbox(root: &str) -> Result<OwnedFd, Errno> {
    let folder = format!("{DISK}/in");
    rustix::fs::mkdir(&folder, Mode::from_raw_mode(0o755))?;
    let opened = rustix::fs::open(&folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let mount = crate::template::detached(&opened)?;
    sys::mount_setattr(mount.as_fd(), false, libc::MOUNT_ATTR_RDONLY, None)?;
    let target = format!("{root}{INBOX}");
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
            let opened = rustix::fs::open(format!("{}{path}", ground.root), flags, Mode::empty())?;
            Ok((crate::template::detached(&opened)?, path))
        })
        .collect()
}

/// Whether a path lies below a folder that is new for this run.
fn is_fresh(ground: &Ground<'_>, path: &str) -> bool {
    let below = |place: &str| path.strip_prefix(place).is_some_and(|rest| rest.starts_with('/'));
    PLACES.iter().any(|(_, place, _)| below(place)) && !(below(WORKSPACE) && ground.has_playground())
}

fn proc(root: &str) -> Result<(), Errno> {
    let path = format!("{root}/proc");
    let flags = PLAIN | MountFlags::NOEXEC;
    rustix::mount::mount("proc", &path, "proc", flags, Some(c"hidepid=2"))?;
    let found = rustix::fs::statfs(&path)?.f_type as i64;
    if found == PROC_MAGIC { Ok(()) } else { Err(Errno::INVAL) }
}

fn masks(root: &str) -> Result<(), Errno> {
    let skip_absent = |result| match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    };
    for name in MASKED_FILES {
        skip_absent(rustix::mount::mount_bind(format!("{root}/dev/null"), format!("{root}/proc/{name}")))?;
    }
    // `/sys` is an empty, read-only folder of the root tree.
    for name in MASKED_FOLDERS {
        skip_absent(rustix::mount::mount_bind(format!("{root}/sys"), format!("{root}/proc/{name}")))?;
    }
    let settings = format!("{root}/proc/sys");
    rustix::mount::mount_bind(&settings, &settings)?;
    let mount = rustix::fs::open(&settings, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    sys::mount_setattr(mount.as_fd(), true, libc::MOUNT_ATTR_RDONLY, None)
}

/// Puts a host folder where it was asked for. Mount points below a fresh folder are made; others must exist.
fn attach(ground: &Ground<'_>, mount: &OwnedFd, destination: &str) -> Result<(), Errno> {
    let target = format!("{}{destination}", ground.root);
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

fn pivot(root: &str) -> Result<(), Errno> {
    rustix::process::chdir(root)?;
    rustix::process::pivot_root(".", ".")?;
    // The old root now lies over the new one; taken away, nothing of the host is left in this namespace.
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}
