//! Mounts that every jail has over its copy of the root tree. All paths are relative: the current directory
//! is the root, or is about to become it.

use core::ffi::CStr;

use crate::flags::{O_CLOEXEC, O_PATH};
use crate::payload::CPath;
use crate::syscall::{
    AT_FDCWD, EEXIST, EINVAL, ENOENT, EROFS, SysResult, close, number, safe_syscall, syscall, syscall_at,
};

const MS_RDONLY: usize = 1;
const MS_NOSUID: usize = 2;
const MS_NODEV: usize = 4;
const MS_NOEXEC: usize = 8;
const MS_REMOUNT: usize = 32;
const MS_BIND: usize = 4_096;
const O_CREATE_TO_WRITE: usize = 0o101;
const OPEN_TREE_CLONE: usize = 1;
const AT_RECURSIVE: usize = 0x8000;
const MOVE_MOUNT_F_EMPTY_PATH: usize = 4;
const PROC_MAGIC: usize = 0x9fa0;

/// Mount point of the disk. The disk's own `home` directory is bound over it in the end.
const DISK_MOUNT_POINT: &CStr = c"home/sandbox";
/// Directories of the disk, where each is bound, and its mode.
const DISK_DIRS: [(&CStr, &CStr, usize); 4] = [
    (c"home/sandbox/workspace", WORKSPACE, 0o755),
    (c"home/sandbox/tmp", c"tmp", 0o1777),
    (c"home/sandbox/shm", c"dev/shm", 0o1777),
    (c"home/sandbox/home", DISK_MOUNT_POINT, 0o700),
];
const WORKSPACE: &CStr = c"workspace";
/// Files in `/proc` that show host information to every user. Files that only root may open need no mask,
/// because root has no id in a jail.
pub const MASKED_FILES: [&CStr; 9] = [
    c"proc/cmdline",
    c"proc/interrupts",
    c"proc/iomem",
    c"proc/ioports",
    c"proc/kallsyms",
    c"proc/key-users",
    c"proc/keys",
    c"proc/modules",
    c"proc/softirqs",
];
/// Directories in `/proc` that show host information.
pub const MASKED_DIRS: [&CStr; 7] =
    [c"proc/acpi", c"proc/asound", c"proc/bus", c"proc/driver", c"proc/fs", c"proc/irq", c"proc/scsi"];

fn mount(kind: &CStr, target: &CStr, flags: usize, options: &CStr) -> SysResult<()> {
    let name = kind.as_ptr() as usize;
    let arguments = [name, target.as_ptr() as usize, name, flags, options.as_ptr() as usize, 0];
    // SAFETY: all strings end in NUL and live across the call.
    unsafe { syscall(number::MOUNT, arguments) }.map(drop)
}

/// Bind-mounts `source` at `target`.
pub(crate) fn bind(source: &CStr, target: &CStr) -> SysResult<()> {
    let arguments = [source.as_ptr() as usize, target.as_ptr() as usize, 0, MS_BIND, 0, 0];
    // SAFETY: both paths end in NUL and live across the call.
    unsafe { syscall(number::MOUNT, arguments) }.map(drop)
}

/// Mounts the disk: one tmpfs for everything writable, so that its size limits the total.
pub fn mount_disk(options: &CStr) -> SysResult<()> {
    mount(c"tmpfs", DISK_MOUNT_POINT, MS_NOSUID | MS_NODEV, options)
}

/// Bind-mounts the directories of the disk in their places, the last one over the disk itself, which makes
/// the disk unreachable. With `own_workspace` unset, the workspace is a host directory and is skipped.
pub fn bind_disk_dirs(owner: (u32, u32), own_workspace: bool) -> SysResult<()> {
    for (folder, target, mode) in DISK_DIRS {
        syscall_at(number::MKDIRAT, AT_FDCWD, folder, &[0o700])?;
        syscall_at(number::FCHMODAT, AT_FDCWD, folder, &[mode])?;
        syscall_at(number::FCHOWNAT, AT_FDCWD, folder, &[owner.0 as usize, owner.1 as usize, 0])?;
        if own_workspace || target != WORKSPACE {
            bind(folder, target)?;
        }
    }
    Ok(())
}

/// Mounts `/proc`, and verifies the file system type.
pub fn mount_proc() -> SysResult<()> {
    mount_proc_with(0)
}

/// Mounts `/proc` like [`mount_proc`], but read-only.
pub fn mount_read_only_proc() -> SysResult<()> {
    mount_proc_with(MS_RDONLY)
}

fn mount_proc_with(flags: usize) -> SysResult<()> {
    mount(c"proc", c"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | flags, c"hidepid=2")?;
    let folder = syscall_at(number::OPENAT, AT_FDCWD, c"proc", &[O_PATH | O_CLOEXEC])?;
    let mut found = [0_usize; 16];
    // SAFETY: the kernel writes 120 bytes to `found`, starting with the file system type.
    let result = unsafe { syscall(number::FSTATFS, [folder, found.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    close(folder as i32);
    result?;
    if found[0] == PROC_MAGIC { Ok(()) } else { Err(EINVAL) }
}

/// Masks files in `/proc` that show host information, and makes `/proc/sys` read-only.
pub fn mask_proc() -> SysResult<()> {
    let unless_absent = |done: SysResult<()>| if done == Err(ENOENT) { Ok(()) } else { done };
    MASKED_FILES.iter().try_for_each(|file| unless_absent(bind(c"dev/null", file)))?;
    // `/sys` is an empty, read-only directory of the root tree.
    MASKED_DIRS.iter().try_for_each(|folder| unless_absent(bind(c"sys", folder)))?;
    let settings = c"proc/sys";
    bind(settings, settings)?;
    let flags = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
    // SAFETY: the path ends in NUL and lives across the call.
    unsafe { syscall(number::MOUNT, [0, settings.as_ptr() as usize, 0, flags, 0, 0]) }.map(drop)
}

/// Mounts `/dev/pts`, with terminals of its own.
pub fn mount_devpts() -> SysResult<()> {
    mount(c"devpts", c"dev/pts", MS_NOSUID | MS_NOEXEC, c"newinstance,ptmxmode=0666,mode=0620")
}

/// Detaches a copy of a mount that must stay visible below a directory that is about to be covered.
pub(crate) fn detach_tree(path: &CStr) -> SysResult<i32> {
    syscall_at(number::OPEN_TREE, AT_FDCWD, path, &[OPEN_TREE_CLONE | AT_RECURSIVE | O_CLOEXEC])
        .map(|fd| fd as i32)
}

/// Attaches a detached mount again. `is_folder` selects the kind of mount point to create.
pub(crate) fn attach_tree(detached: i32, path: &[u8], is_folder: bool) -> SysResult<()> {
    make_mount_point(path, is_folder)?;
    let target = CPath::new(path)?;
    let empty = c"".as_ptr() as usize;
    let arguments = [detached as usize, empty, AT_FDCWD, target.pointer(), MOVE_MOUNT_F_EMPTY_PATH, 0];
    // SAFETY: both paths end in NUL and live across the call.
    let moved = unsafe { syscall(number::MOVE_MOUNT, arguments) }.map(drop);
    close(detached);
    moved
}

fn make_mount_point(path: &[u8], is_folder: bool) -> SysResult<()> {
    let make =
        |path: &[u8]| match syscall_at(number::MKDIRAT, AT_FDCWD, CPath::new(path)?.as_c_str(), &[0o755]) {
            Ok(_) | Err(EEXIST | EROFS) => Ok(()),
            Err(refused) => Err(refused),
        };
    let parents = path.iter().enumerate().filter(|(at, byte)| *at > 0 && **byte == b'/');
    parents.map(|(end, _)| &path[..end]).try_for_each(make)?;
    if is_folder {
        return make(path);
    }
    let file = syscall_at(
        number::OPENAT,
        AT_FDCWD,
        CPath::new(path)?.as_c_str(),
        &[O_CREATE_TO_WRITE | O_CLOEXEC, 0o644],
    )?;
    safe_syscall(number::CLOSE, &[file]).map(drop)
}
