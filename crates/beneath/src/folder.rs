//! Folders by descriptor: opening, listing and identifying them.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Dir, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

/// Opens a folder, but no symlink to one.
pub const OPEN_FOLDER_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Creates a new file; fails if the name exists.
pub const NEW_FILE_FLAGS: OFlags =
    OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Whether folders may be entered on which another file system is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// Mounts are entered: inside a sandbox, a mounted volume is a part of the tree.
    Enter,
    /// Mounts are refused. Linux detects bind mounts of the same file system, too.
    Refuse,
}

/// Identifies a file or folder while it is open: device and inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeIdentity {
    /// Wide enough for `dev_t` of every system.
    device: i128,
    inode: u64,
}

/// Returns the identity of an open file or folder.
///
/// # Errors
/// Fails like `fstat`.
pub fn identity(opened: impl AsFd) -> Result<InodeIdentity, Errno> {
    let stat = rustix::fs::fstat(opened)?;
    Ok(InodeIdentity { device: i128::from(stat.st_dev), inode: stat.st_ino })
}

/// Accepts only the name of an entry of a folder.
///
/// # Errors
/// Fails with `INVAL` for `.`, `..` and paths.
pub(crate) fn check_name(name: &CStr) -> Result<(), Errno> {
    let bytes = name.to_bytes();
    let bad = matches!(bytes, b"" | b"." | b"..") || bytes.contains(&b'/');
    if bad { Err(Errno::INVAL) } else { Ok(()) }
}

/// Opens a subfolder by name.
///
/// # Errors
/// Fails with `LOOP` or `NOTDIR` for anything but a folder, and with `XDEV` for a mount point that may not be
/// entered.
pub fn open_subfolder(folder: BorrowedFd<'_>, name: &CStr, mounts: Mounts) -> Result<OwnedFd, Errno> {
    open_entry(folder, name, OPEN_FOLDER_FLAGS, mounts)
}

fn open_entry(folder: BorrowedFd<'_>, name: &CStr, flags: OFlags, mounts: Mounts) -> Result<OwnedFd, Errno> {
    check_name(name)?;
    match mounts {
        // Inside a sandbox, seccomp refuses `openat2`.
        Mounts::Enter => rustix::fs::openat(folder, name, flags, Mode::empty()),
        Mounts::Refuse => open_on_same_mount(folder, name, flags),
    }
}

#[cfg(target_os = "linux")]
fn open_on_same_mount(folder: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    use rustix::fs::ResolveFlags;

    const RESOLVE_FLAGS: ResolveFlags = ResolveFlags::BENEATH
        .union(ResolveFlags::NO_SYMLINKS)
        .union(ResolveFlags::NO_MAGICLINKS)
        .union(ResolveFlags::NO_XDEV);
    match rustix::fs::openat2(folder, name, flags, Mode::empty(), RESOLVE_FLAGS) {
        // A kernel before 5.6, or a container whose seccomp filter does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => open_on_same_device(folder, name, flags),
        opened => opened,
    }
}

#[cfg(not(target_os = "linux"))]
fn open_on_same_mount(folder: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    open_on_same_device(folder, name, flags)
}

fn open_on_same_device(folder: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let opened = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    if identity(&opened)?.device != identity(folder)?.device {
        return Err(Errno::XDEV);
    }
    Ok(opened)
}

/// Opens a subfolder and gives its owner all permissions, which removing its entries requires.
pub(crate) fn open_unlocked(folder: BorrowedFd<'_>, name: &CStr, mounts: Mounts) -> Result<OwnedFd, Errno> {
    let opened = match open_subfolder(folder, name, mounts) {
        Err(Errno::ACCESS) => {
            unlock(folder, name, mounts)?;
            open_subfolder(folder, name, mounts)?
        }
        opened => opened?,
    };
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        rustix::fs::fchmod(&opened, Mode::RWXU)?;
    }
    Ok(opened)
}

/// Gives the owner all permissions on a folder: by descriptor, so that no other folder can take its place.
#[cfg(target_os = "linux")]
fn unlock(folder: BorrowedFd<'_>, name: &CStr, mounts: Mounts) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;

    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = open_entry(folder, name, flags, mounts)?;
    // A descriptor opened with `O_PATH` does not allow fchmod.
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    rustix::fs::chmodat(rustix::fs::CWD, path, Mode::RWXU, rustix::fs::AtFlags::empty())
}

#[cfg(not(target_os = "linux"))]
fn unlock(_folder: BorrowedFd<'_>, _name: &CStr, _mounts: Mounts) -> Result<(), Errno> {
    Err(Errno::ACCESS)
}

/// Returns the names in a folder, at most `most + 1` of them.
///
/// # Errors
/// Fails if the folder cannot be read.
pub fn names(folder: BorrowedFd<'_>, most: usize) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    let mut entries = Dir::read_from(folder)?;
    while let Some(name) = next_name(&mut entries)? {
        names.push(name);
        if names.len() > most {
            break;
        }
    }
    Ok(names)
}

/// Returns the next name in a folder, other than `.` and `..`.
pub(crate) fn next_name(entries: &mut Dir) -> Result<Option<CString>, Errno> {
    while let Some(entry) = entries.read() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            return Ok(Some(entry.file_name().to_owned()));
        }
    }
    Ok(None)
}

/// Sets the modification time of a file, in seconds since 1970.
///
/// # Errors
/// Fails if the file system does not support the time.
pub fn set_modified(file: impl AsFd, modified: i64) -> Result<(), Errno> {
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ },
        last_modification: Timespec { tv_sec: modified, tv_nsec: 0 },
    };
    rustix::fs::futimens(file, &times)
}

/// Converts a time to seconds since 1970, as modification times are.
pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Syncs all files to disk. One `syncfs`: an `fsync` for each would take longer than writing them.
///
/// # Errors
/// Fails with an error of the disk.
pub fn sync_files(folder: impl AsFd) -> Result<(), Errno> {
    #[cfg(target_os = "linux")]
    return rustix::fs::syncfs(folder);
    #[cfg(not(target_os = "linux"))]
    return rustix::fs::fsync(folder);
}
