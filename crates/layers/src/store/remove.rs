//! Removes a tree of any depth with only two open folders: nested folders are moved to the top first. A mount
//! point cannot be moved, so no other file system is emptied.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;

use super::error::LayerStoreError;
use super::folder::{OPEN_FOLDER_FLAGS, StoreFolder, names, random_name};

/// Names read at a time: a folder can contain more names than should be in memory.
const BATCH: usize = 4_096;

/// Removes an entry and everything below it; succeeds if it does not exist.
pub fn remove(parent: &StoreFolder, name: &str) -> Result<(), LayerStoreError> {
    remove_at(parent.as_fd(), name).map_err(|errno| parent.error("remove", name, errno))
}

/// Removes an entry of any folder and everything below it; succeeds if it does not exist.
pub fn remove_at(parent: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy) -> Result<(), Errno> {
    // Unpredictable, so that no name in the tree collides with a moved folder.
    let prefix = random_name().map_err(|_| Errno::IO)?;
    remove_tree(parent, name, &mut LiftCounter { prefix, count: 0 })
}

struct LiftCounter {
    prefix: String,
    count: u64,
}

fn remove_tree(
    parent: BorrowedFd<'_>,
    name: impl rustix::path::Arg + Copy,
    lifts: &mut LiftCounter,
) -> Result<(), Errno> {
    let top = match open_writable(parent, name) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return rustix::fs::unlinkat(parent, name, AtFlags::empty()),
        Err(errno) => return Err(errno),
    };
    loop {
        let names = names(top.as_fd(), BATCH)?;
        if names.is_empty() {
            break;
        }
        for name in names {
            if is_folder(top.as_fd(), &name)? {
                empty_folder(top.as_fd(), open_writable(top.as_fd(), &*name)?, lifts)?;
                ignore_missing(rustix::fs::unlinkat(&top, &name, AtFlags::REMOVEDIR))?;
            } else {
                ignore_missing(rustix::fs::unlinkat(&top, &name, AtFlags::empty()))?;
            }
        }
    }
    ignore_missing(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR))
}

/// Unlinks the files of a folder, and moves its subfolders to the top.
fn empty_folder(top: BorrowedFd<'_>, folder: OwnedFd, lifts: &mut LiftCounter) -> Result<(), Errno> {
    loop {
        let names = names(folder.as_fd(), BATCH)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            if is_folder(folder.as_fd(), &name)? {
                // Opening it makes it writable: a folder that is not writable cannot be moved.
                drop(open_writable(folder.as_fd(), &*name)?);
                lifts.count += 1;
                rustix::fs::renameat(&folder, &name, top, format!("{}-{}", lifts.prefix, lifts.count))?;
            } else {
                ignore_missing(rustix::fs::unlinkat(&folder, &name, AtFlags::empty()))?;
            }
        }
    }
}

fn is_folder(folder: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
    let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Opens a folder and gives its owner all permissions.
fn open_writable(folder: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy) -> Result<OwnedFd, Errno> {
    let opened = match rustix::fs::openat(folder, name, OPEN_FOLDER_FLAGS, Mode::empty()) {
        Err(Errno::ACCESS) => {
            make_accessible(folder, name)?;
            rustix::fs::openat(folder, name, OPEN_FOLDER_FLAGS, Mode::empty())?
        }
        opened => opened?,
    };
    rustix::fs::fchmod(&opened, Mode::RWXU)?;
    Ok(opened)
}

/// Makes a folder accessible by descriptor, so that no other folder can take its place.
#[cfg(target_os = "linux")]
fn make_accessible(folder: BorrowedFd<'_>, name: impl rustix::path::Arg) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;

    use rustix::fs::OFlags;

    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    // A descriptor opened with `O_PATH` does not allow fchmod.
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    rustix::fs::chmodat(rustix::fs::CWD, path, Mode::RWXU, AtFlags::empty())
}

#[cfg(not(target_os = "linux"))]
fn make_accessible(_folder: BorrowedFd<'_>, _name: impl rustix::path::Arg) -> Result<(), Errno> {
    Err(Errno::ACCESS)
}

/// Ignores that another process has removed the entry.
fn ignore_missing(result: Result<(), Errno>) -> Result<(), Errno> {
    if result == Err(Errno::NOENT) { Ok(()) } else { result }
}
