//! Walks down into a tree and up again with one folder open at a time, however deep it is.
//!
//! Each step up is verified, because folders may be moved meanwhile: a walk never leaves the folder in which
//! it began.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::Mode;
use rustix::io::Errno;

use crate::folder::{InodeIdentity, Mounts, OPEN_FOLDER_FLAGS, identity, open_subfolder};

/// An open folder, and the path to it.
#[derive(Debug)]
pub struct FolderWalk {
    folder: OwnedFd,
    mounts: Mounts,
    ancestors: Vec<WalkLevel>,
}

/// A step down: the name of the entered folder, and the identity of its parent.
#[derive(Debug)]
struct WalkLevel {
    name: CString,
    parent: InodeIdentity,
}

impl FolderWalk {
    /// Begins a walk in a folder.
    pub fn new(top: OwnedFd, mounts: Mounts) -> Self {
        Self { folder: top, mounts, ancestors: Vec::new() }
    }

    /// Returns the current folder.
    pub fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Returns how many folders the walk is below its top.
    pub fn depth(&self) -> usize {
        self.ancestors.len()
    }

    /// Enters a subfolder.
    ///
    /// # Errors
    /// Fails with `LOOP` or `NOTDIR` for anything but a folder, and with `XDEV` for a mount point that may not
    /// be entered.
    pub fn down(&mut self, name: CString) -> Result<(), Errno> {
        let inner = open_subfolder(self.folder(), &name, self.mounts)?;
        self.enter(name, inner)
    }

    /// Continues in an open subfolder.
    pub(crate) fn enter(&mut self, name: CString, inner: OwnedFd) -> Result<(), Errno> {
        self.ancestors.push(WalkLevel { name, parent: identity(self.folder())? });
        self.folder = inner;
        Ok(())
    }

    /// Returns to the parent and gives the name of the folder that was left, or `None` at the top.
    ///
    /// # Errors
    /// Fails with `STALE` if the parent is not the folder that was entered from.
    pub fn up(&mut self) -> Result<Option<CString>, Errno> {
        let Some(level) = self.ancestors.pop() else { return Ok(None) };
        let parent = rustix::fs::openat(&self.folder, c"..", OPEN_FOLDER_FLAGS, Mode::empty())?;
        if identity(&parent)? != level.parent {
            return Err(Errno::STALE);
        }
        self.folder = parent;
        Ok(Some(level.name))
    }
}
