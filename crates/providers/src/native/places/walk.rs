//! Walks down into a tenant's folders and up again with one folder open at a time, however deep they are.
//!
//! No symlink is followed and no other file system is entered. Each step up is verified, because folders may
//! be moved meanwhile: a walk never leaves the folder in which it began.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

const FOLDER_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);
const RESOLVE_FLAGS: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// An open folder, and the path to it.
#[derive(Debug)]
pub(super) struct FolderWalk {
    folder: OwnedFd,
    ancestors: Vec<WalkLevel>,
}

/// A step down: the name of the entered folder, and the identity of its parent.
#[derive(Debug)]
struct WalkLevel {
    name: CString,
    parent: (u64, u64),
}

impl FolderWalk {
    pub(super) fn new(top: OwnedFd) -> Self {
        Self { folder: top, ancestors: Vec::new() }
    }

    pub(super) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Enters a subfolder.
    pub(super) fn down(&mut self, name: CString) -> Result<(), Errno> {
        let inner = open_inside(self.folder(), &name)?;
        self.ancestors.push(WalkLevel { name, parent: identity(self.folder())? });
        self.folder = inner;
        Ok(())
    }

    /// Returns to the parent and gives the name of the folder that was left, or `None` at the top. Fails with
    /// `STALE` if the parent is not the folder that was entered from.
    pub(super) fn up(&mut self) -> Result<Option<CString>, Errno> {
        let Some(level) = self.ancestors.pop() else { return Ok(None) };
        let parent = rustix::fs::openat(&self.folder, c"..", FOLDER_FLAGS, Mode::empty())?;
        if identity(parent.as_fd())? != level.parent {
            return Err(Errno::STALE);
        }
        self.folder = parent;
        Ok(Some(level.name))
    }
}

/// Opens a subfolder by name.
pub(super) fn open_inside(folder: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(folder, name, FOLDER_FLAGS, Mode::empty(), RESOLVE_FLAGS)
}

/// Grants the owner all permissions on a folder: through a descriptor, so that it is exactly this folder.
pub(super) fn grant_access(folder: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat2(folder, name, flags, Mode::empty(), RESOLVE_FLAGS)?;
    // An `O_PATH` descriptor does not support fchmod.
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    rustix::fs::chmodat(CWD, path, Mode::RWXU, rustix::fs::AtFlags::empty())
}

/// Returns the device and inode number.
pub(super) fn identity(folder: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    rustix::fs::fstat(folder).map(|stat| (stat.st_dev, stat.st_ino))
}
