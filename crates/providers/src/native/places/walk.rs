//! Going down into a tenant's folders and up again, with one folder open at a time, however deep they are.
//!
//! No link is followed and no other file system entered. The way back up is checked, because folders may be moved
//! meanwhile: whoever walks here can never come out above the folder in which it began.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);
const INSIDE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// A folder that stands open, and the way on which it was reached.
#[derive(Debug)]
pub(super) struct Walk {
    folder: OwnedFd,
    way: Vec<Level>,
}

/// A step down: the name of the folder, and which one it was in.
#[derive(Debug)]
struct Level {
    name: CString,
    parent: (u64, u64),
}

impl Walk {
    pub(super) fn new(top: OwnedFd) -> Self {
        Self { folder: top, way: Vec::new() }
    }

    pub(super) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Goes into a folder that is in this one.
    pub(super) fn down(&mut self, name: CString) -> Result<(), Errno> {
        let inner = open_inside(self.folder(), &name)?;
        self.way.push(Level { name, parent: identity(self.folder())? });
        self.folder = inner;
        Ok(())
    }

    /// Goes back to the folder above, and gives the name of the one that was left; `None` where this is the top.
    /// `STALE` where it is not the folder from which this one was entered.
    pub(super) fn up(&mut self) -> Result<Option<CString>, Errno> {
        let Some(level) = self.way.pop() else { return Ok(None) };
        let parent = rustix::fs::openat(&self.folder, c"..", FOLDER, Mode::empty())?;
        if identity(parent.as_fd())? != level.parent {
            return Err(Errno::STALE);
        }
        self.folder = parent;
        Ok(Some(level.name))
    }
}

/// Opens a folder by its name in another.
pub(super) fn open_inside(folder: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(folder, name, FOLDER, Mode::empty(), INSIDE)
}

/// Gives the owner every right to a folder that lacks some: by descriptor, so that it is that folder and no other.
pub(super) fn unlock(folder: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat2(folder, name, flags, Mode::empty(), INSIDE)?;
    // What is open as a path only cannot be changed directly.
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    rustix::fs::chmodat(CWD, path, Mode::RWXU, rustix::fs::AtFlags::empty())
}

/// Which folder it is.
pub(super) fn identity(folder: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    rustix::fs::fstat(folder).map(|stat| (stat.st_dev, stat.st_ino))
}
