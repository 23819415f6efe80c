//! The jail's own mounts over its copy of the root tree. Everything is built in folders of ours, and checked, before
//! anything of the tenant's is there.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, UnmountFlags};

use super::Cell;
use crate::payload::Payload;
use crate::spec::{HOME, INBOX, INNER_UID, Place, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys;

const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
/// Folders of the disk, where each is mounted, and its mode.
const PLACES: &[(&str, &str, u32)] =
    &[("workspace", WORKSPACE, 0o755), ("home", HOME, 0o700), ("tmp", "/tmp", 0o1777), ("shm", "/dev/shm", 0o1777)];

/// As file systems on disks have it. More would let kernel memory, and the time that landlock needs to climb out of
/// a deep folder, grow out of all proportion to the disk.
const BYTES_PER_INODE: u64 = 16 << 10;

/// What `/proc` shows of the host and no program needs: kernel addresses, keys, logs, hardware.
const MASKED_FILES: &[&str] = &[
    "cmdline", "interrupts", "iomem", "ioports", "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup",
    "kpagecount", "kpageflags", "latency_stats", "modules", "mtrr", "sched_debug", "slabinfo", "softirqs",
    "sysrq-trigger", "timer_list", "timer_stats", "vmallocinfo",
];
const MASKED_FOLDERS: &[&str] = &["acpi", "asound", "bus", "driver", "fs", "irq", "scsi"];
const PROC_MAGIC: i64 = 0x9fa0;

/// Mounts everything and makes it the root.
pub(super) fn build(cell: &Cell<'_>, payload: &Payload) -> Result<(), StepFailed> {
    let root = cell.root;
    // A copy of a tree from outside is locked; a tree bound over itself is ours to pivot into.
    step(Step::Root, "", || rustix::mount::mount_bind_recursive(root, root))?;
    step(Step::Disk, "", || disk(cell))?;
    step(Step::Inbox, "", || inbox(cell, payload))?;
    step(Step::Proc, "", || proc(root))?;
    step(Step::Masks, "/proc", || masks(root))?;
    step(Step::Terminals, "", || {
        let options = c"newinstance,ptmxmode=0666,mode=0620";
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        rustix::mount::mount("devpts", format!("{root}/dev/pts"), "devpts", flags, Some(options))
    })?;
    for (mount, destination) in cell.binds {
        step(Step::Binds, destination, || attach(cell, mount, destination))?;
    }
    step(Step::Pivot, "", || pivot(root))
}

/// One tmpfs for everything that can be written, so that one size is the limit.
fn disk(cell: &Cell<'_>) -> Result<(), Errno> {
    let root = cell.root;
    let bytes = cell.jail.limits.disk_bytes;
    let inodes = (bytes / BYTES_PER_INODE).max(1_024);
    let options = format!("size={bytes},nr_inodes={inodes},mode=0755\0");
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).map_err(|_| Errno::INVAL)?;
    let base = format!("{root}{INBOX}");
    rustix::mount::mount("tmpfs", &base, "tmpfs", PLAIN, Some(options))?;
    for (name, path, mode) in PLACES {
        let folder = format!("{base}/{name}");
        rustix::fs::mkdir(&folder, Mode::from_raw_mode(0o700))?;
        rustix::fs::chmod(&folder, Mode::from_raw_mode(*mode))?;
        rustix::fs::chown(&folder, Some(Uid::from_raw(INNER_UID)), Some(Gid::from_raw(INNER_UID)))?;
        if *path == WORKSPACE && cell.jail.playground.is_some() {
            continue;
        }
        rustix::mount::mount_bind(&folder, format!("{root}{path}"))?;
    }
    Ok(())
}

/// Puts a runner and its arguments where the program can read them, and takes the disk's own mount point away.
fn inbox(cell: &Cell<'_>, payload: &Payload) -> Result<(), Errno> {
    let base = format!("{}{INBOX}", cell.root);
    let folder = format!("{base}/in");
    rustix::fs::mkdir(&folder, Mode::from_raw_mode(0o755))?;
    let opened = rustix::fs::open(&folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    payload.unpack(Place::Inbox, opened.as_fd()).map_err(|(_, errno)| errno)?;
    if !cell.jail.result_pipe {
        return rustix::mount::unmount(&base, UnmountFlags::DETACH);
    }
    let inbox = crate::template::detached(&opened)?;
    sys::mount_setattr(inbox.as_fd(), false, libc::MOUNT_ATTR_RDONLY, None)?;
    rustix::mount::unmount(&base, UnmountFlags::DETACH)?;
    rustix::mount::move_mount(&inbox, "", CWD, &base, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
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

/// Puts a host folder where it was asked for. Mount points below a fresh workspace are made; others must exist.
fn attach(cell: &Cell<'_>, mount: &OwnedFd, destination: &str) -> Result<(), Errno> {
    let target = format!("{}{destination}", cell.root);
    if destination.starts_with("/workspace/") && cell.jail.playground.is_none() {
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
