//! Removing a tree of any depth, with two folders open at a time: folders in folders are lifted to the top first. What is
//! mounted cannot be lifted, so no other file system is emptied.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;

use super::error::ShelfError;
use super::folder::{Folder, OPEN_FOLDER, names, random_name};

/// Enough at a time: a folder may hold more names than memory should.
const BATCH: usize = 4_096;

/// Removes what is there under a name; nothing is as good.
pub fn remove(parent: &Folder, name: &str) -> Result<(), ShelfError> {
    remove_at(parent.as_fd(), name).map_err(|errno| parent.failed("remove", name, errno))
}

/// The same in any folder.
pub fn remove_at(parent: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy) -> Result<(), Errno> {
    // Nobody has guessed the names of lifted folders.
    let prefix = random_name().map_err(|_| Errno::IO)?;
    tree(parent, name, &mut Lifts { prefix, count: 0 })
}

struct Lifts {
    prefix: String,
    count: u64,
}

fn tree(parent: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy, lifts: &mut Lifts) -> Result<(), Errno> {
    let top = match open(parent, name) {
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
                empty(top.as_fd(), open(top.as_fd(), &*name)?, lifts)?;
                gone(rustix::fs::unlinkat(&top, &name, AtFlags::REMOVEDIR))?;
            } else {
                gone(rustix::fs::unlinkat(&top, &name, AtFlags::empty()))?;
            }
        }
    }
    gone(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR))
}

/// Unlinks the files of a folder, and lifts its folders to the top.
fn empty(top: BorrowedFd<'_>, folder: OwnedFd, lifts: &mut Lifts) -> Result<(), Errno> {
    loop {
        let names = names(folder.as_fd(), BATCH)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            if is_folder(folder.as_fd(), &name)? {
                // Made ours first: a folder that may not be written cannot be moved.
                drop(open(folder.as_fd(), &*name)?);
                lifts.count += 1;
                rustix::fs::renameat(&folder, &name, top, format!("{}-{}", lifts.prefix, lifts.count))?;
            } else {
                gone(rustix::fs::unlinkat(&folder, &name, AtFlags::empty()))?;
            }
        }
    }
}

fn is_folder(folder: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
    let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Opens a folder, and gives its owner every right to it.
fn open(folder: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy) -> Result<OwnedFd, Errno> {
    let opened = match rustix::fs::openat(folder, name, OPEN_FOLDER, Mode::empty()) {
        Err(Errno::ACCESS) => {
            unlock(folder, name)?;
            rustix::fs::openat(folder, name, OPEN_FOLDER, Mode::empty())?
        }
        opened => opened?,
    };
    rustix::fs::fchmod(&opened, Mode::RWXU)?;
    Ok(opened)
}

/// By descriptor, so that it is that folder and no other.
#[cfg(target_os = "linux")]
fn unlock(folder: BorrowedFd<'_>, name: impl rustix::path::Arg) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;

    use rustix::fs::OFlags;

    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    // What is open as a path only cannot be changed directly.
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    rustix::fs::chmodat(rustix::fs::CWD, path, Mode::RWXU, AtFlags::empty())
}

#[cfg(not(target_os = "linux"))]
fn unlock(_folder: BorrowedFd<'_>, _name: impl rustix::path::Arg) -> Result<(), Errno> {
    Err(Errno::ACCESS)
}

/// Somebody else who removed it did no harm.
fn gone(result: Result<(), Errno>) -> Result<(), Errno> {
    if result == Err(Errno::NOENT) { Ok(()) } else { result }
}
