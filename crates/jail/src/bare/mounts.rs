//! Mounts that every jail has over its copy of the root tree. All paths are relative: the current directory
//! is the root, or is about to become it.

use core::ffi::CStr;

use super::call::{Answer, EXISTS, HERE, INVALID, NOT_THERE, READ_ONLY, at, call, close, number, plain};
use super::payload::Name;

const MS_RDONLY: usize = 1;
const MS_NOSUID: usize = 2;
const MS_NODEV: usize = 4;
const MS_NOEXEC: usize = 8;
const MS_REMOUNT: usize = 32;
const MS_BIND: usize = 4_096;
const O_PATH: usize = 0o10_000_000;
const O_CLOEXEC: usize = 0o2_000_000;
const O_CREATE_TO_WRITE: usize = 0o101;
const OPEN_TREE_CLONE: usize = 1;
const AT_RECURSIVE: usize = 0x8000;
const MOVE_MOUNT_F_EMPTY_PATH: usize = 4;
const PROC_MAGIC: usize = 0x9fa0;

/// Mount point of the disk. The disk's own `home` directory is bound over it in the end.
const DISK: &CStr = c"home/sandbox";
/// Directories of the disk, where each is bound, and its mode.
const PLACES: [(&CStr, &CStr, usize); 4] = [
    (c"home/sandbox/workspace", WORKSPACE, 0o755),
    (c"home/sandbox/tmp", c"tmp", 0o1777),
    (c"home/sandbox/shm", c"dev/shm", 0o1777),
    (c"home/sandbox/home", DISK, 0o700),
];
const WORKSPACE: &CStr = c"workspace";
/// Files in `/proc` that show host information to every user. Files that only root may open need no mask,
/// because root has no id in a jail.
pub(crate) const MASKED_FILES: [&CStr; 9] = [
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
pub(crate) const MASKED_FOLDERS: [&CStr; 7] =
    [c"proc/acpi", c"proc/asound", c"proc/bus", c"proc/driver", c"proc/fs", c"proc/irq", c"proc/scsi"];

fn mount(kind: &CStr, target: &CStr, flags: usize, options: &CStr) -> Answer<()> {
    let name = kind.as_ptr() as usize;
    let arguments = [name, target.as_ptr() as usize, name, flags, options.as_ptr() as usize, 0];
    // SAFETY: all strings end in NUL and live across the call.
    unsafe { call(number::MOUNT, arguments) }.map(drop)
}

/// Bind-mounts `source` at `target`.
pub(crate) fn bind(source: &CStr, target: &CStr) -> Answer<()> {
    let arguments = [source.as_ptr() as usize, target.as_ptr() as usize, 0, MS_BIND, 0, 0];
    // SAFETY: both paths end in NUL and live across the call.
    unsafe { call(number::MOUNT, arguments) }.map(drop)
}

/// Mounts the disk: one tmpfs for everything writable, so that its size limits the total.
pub(crate) fn disk(options: &CStr) -> Answer<()> {
    mount(c"tmpfs", DISK, MS_NOSUID | MS_NODEV, options)
}

/// Bind-mounts the directories of the disk in their places, the last one over the disk itself, which makes
/// the disk unreachable. With `own_workspace` unset, the workspace is a host directory and is skipped.
pub(crate) fn places(owner: (u32, u32), own_workspace: bool) -> Answer<()> {
    for (folder, place, mode) in PLACES {
        at(number::MKDIRAT, HERE, folder, &[0o700])?;
        at(number::FCHMODAT, HERE, folder, &[mode])?;
        at(number::FCHOWNAT, HERE, folder, &[owner.0 as usize, owner.1 as usize, 0])?;
        if own_workspace || place != WORKSPACE {
            bind(folder, place)?;
        }
    }
    Ok(())
}

/// Mounts `/proc`, and verifies the file system type.
pub(crate) fn proc() -> Answer<()> {
    mount(c"proc", c"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, c"hidepid=2")?;
    let folder = at(number::OPENAT, HERE, c"proc", &[O_PATH | O_CLOEXEC])?;
    let mut found = [0_usize; 16];
    // SAFETY: the kernel writes 120 bytes to `found`, starting with the file system type.
    let asked = unsafe { call(number::FSTATFS, [folder, found.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    close(folder as i32);
    asked?;
    if found[0] == PROC_MAGIC { Ok(()) } else { Err(INVALID) }
}

/// Masks files in `/proc` that show host information, and makes `/proc/sys` read-only.
pub(crate) fn masks() -> Answer<()> {
    let unless_absent = |done: Answer<()>| if done == Err(NOT_THERE) { Ok(()) } else { done };
    MASKED_FILES.iter().try_for_each(|file| unless_absent(bind(c"dev/null", file)))?;
    // `/sys` is an empty, read-only directory of the root tree.
    MASKED_FOLDERS.iter().try_for_each(|folder| unless_absent(bind(c"sys", folder)))?;
    let settings = c"proc/sys";
    bind(settings, settings)?;
    let flags = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
    // SAFETY: the path ends in NUL and lives across the call.
    unsafe { call(number::MOUNT, [0, settings.as_ptr() as usize, 0, flags, 0, 0]) }.map(drop)
}

pub(crate) fn terminals() -> Answer<()> {
    mount(c"devpts", c"dev/pts", MS_NOSUID | MS_NOEXEC, c"newinstance,ptmxmode=0666,mode=0620")
}

/// Detaches a copy of a mount that must stay visible below a directory that is about to be covered.
pub(crate) fn hold(path: &CStr) -> Answer<i32> {
    at(number::OPEN_TREE, HERE, path, &[OPEN_TREE_CLONE | AT_RECURSIVE | O_CLOEXEC]).map(|fd| fd as i32)
}

/// Attaches a detached mount again. `is_folder` selects the kind of mount point to create.
pub(crate) fn put_back(held: i32, path: &[u8], is_folder: bool) -> Answer<()> {
    make_mount_point(path, is_folder)?;
    let target = Name::of(path)?;
    let empty = c"".as_ptr() as usize;
    let arguments = [held as usize, empty, HERE, target.pointer(), MOVE_MOUNT_F_EMPTY_PATH, 0];
    // SAFETY: both paths end in NUL and live across the call.
    let moved = unsafe { call(number::MOVE_MOUNT, arguments) }.map(drop);
    close(held);
    moved
}

fn make_mount_point(path: &[u8], is_folder: bool) -> Answer<()> {
    let make = |path: &[u8]| match at(number::MKDIRAT, HERE, Name::of(path)?.text(), &[0o755]) {
        Ok(_) | Err(EXISTS | READ_ONLY) => Ok(()),
        Err(refused) => Err(refused),
    };
    let ends = path.iter().enumerate().filter(|(at, byte)| *at > 0 && **byte == b'/');
    ends.map(|(end, _)| &path[..end]).try_for_each(make)?;
    if is_folder {
        return make(path);
    }
    let file = at(number::OPENAT, HERE, Name::of(path)?.text(), &[O_CREATE_TO_WRITE | O_CLOEXEC, 0o644])?;
    plain(number::CLOSE, &[file]).map(drop)
}
