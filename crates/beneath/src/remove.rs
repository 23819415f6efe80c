//! Removes a tree of any depth, a few entries at a time, even while processes change it.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::folder::{Mounts, check_name, next_name, open_subfolder, open_unlocked};
use crate::walk::FolderWalk;

/// Entries removed in one step.
const STEP_ENTRIES: usize = 64;
/// How often removal restarts at the top because folders were moved or filled again.
const MAX_RESTARTS: usize = 64;

/// How far a removal goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovalRules {
    /// Whether entries of mounted file systems are removed.
    pub mounts: Mounts,
    /// Whether folders are made writable first.
    pub unlock: bool,
    /// Bounds the work if a process creates entries as fast as they are removed.
    pub max_entries: u64,
}

impl RemovalRules {
    /// The host removes what others left: whatever its permissions, and nothing that is mounted below.
    pub const LEFTOVERS: Self = Self { mounts: Mounts::Refuse, unlock: true, max_entries: 100_000_000 };
    /// A user removes a tree within a sandbox, like `rm -r`: the permissions and mounts are the user's own.
    pub const AS_USER: Self = Self { mounts: Mounts::Enter, unlock: false, max_entries: 10_000_000 };
}

/// The result of unlinking one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlinked {
    /// The entry was removed.
    Gone,
    /// The entry is a folder that is not empty.
    Folder,
}

/// Removes a file, a link or an empty folder.
///
/// # Errors
/// Fails like `unlinkat`.
pub fn unlink(folder: impl AsFd, name: impl Arg + Copy) -> Result<Unlinked, Errno> {
    let refusal = match rustix::fs::unlinkat(&folder, name, AtFlags::empty()) {
        // Linux answers ISDIR for a folder, other systems PERM.
        Err(errno @ (Errno::ISDIR | Errno::PERM)) => errno,
        answer => return answer.map(|()| Unlinked::Gone),
    };
    match rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Unlinked::Folder),
        Err(Errno::NOTDIR) if refusal == Errno::PERM => Err(refusal),
        answer => answer.map(|()| Unlinked::Gone),
    }
}

/// Removes an entry and everything below it; succeeds if it does not exist.
///
/// # Errors
/// Fails with `DQUOT` beyond the limit of entries, and with `STALE` if the tree keeps changing.
pub fn remove_tree(parent: impl AsFd, name: impl Arg, rules: RemovalRules) -> Result<(), Errno> {
    let mut removal = Removal::new(parent.as_fd(), name, rules)?;
    while removal.step()? {}
    Ok(())
}

/// The removal of an entry and everything below it, in steps.
#[derive(Debug)]
pub struct Removal<'a> {
    parent: BorrowedFd<'a>,
    name: CString,
    rules: RemovalRules,
    entries_left: u64,
    restarts_left: usize,
    /// The folder being emptied; `None` before the top is opened.
    walk: Option<FolderWalk>,
    /// Its entries that are not looked at yet.
    entries: Option<Dir>,
}

impl<'a> Removal<'a> {
    /// Prepares the removal of an entry of a folder.
    ///
    /// # Errors
    /// Fails with `INVAL` unless the name is one of an entry.
    pub fn new(parent: BorrowedFd<'a>, name: impl Arg, rules: RemovalRules) -> Result<Self, Errno> {
        let name = name.into_c_str()?.into_owned();
        check_name(&name)?;
        let (entries_left, restarts_left) = (rules.max_entries, MAX_RESTARTS);
        Ok(Self { parent, name, rules, entries_left, restarts_left, walk: None, entries: None })
    }

    /// Removes some entries. Returns whether any may be left.
    ///
    /// # Errors
    /// Fails like [`remove_tree`].
    pub fn step(&mut self) -> Result<bool, Errno> {
        let done = if self.walk.is_some() { self.continue_walk().map(|()| true) } else { self.remove_top() };
        match done {
            // A folder was moved or removed meanwhile.
            Err(Errno::STALE | Errno::NOENT) => self.restart(),
            done => done,
        }
    }

    /// Begins again at the top.
    fn restart(&mut self) -> Result<bool, Errno> {
        self.restarts_left = self.restarts_left.checked_sub(1).ok_or(Errno::STALE)?;
        (self.walk, self.entries) = (None, None);
        Ok(true)
    }

    fn remove_top(&mut self) -> Result<bool, Errno> {
        match unlink(self.parent, &*self.name) {
            Ok(Unlinked::Gone) | Err(Errno::NOENT) => Ok(false),
            Ok(Unlinked::Folder) => {
                let top = self.open(self.parent, &self.name)?;
                self.walk = Some(FolderWalk::new(top, self.rules.mounts));
                Ok(true)
            }
            Err(errno) => Err(errno),
        }
    }

    fn continue_walk(&mut self) -> Result<(), Errno> {
        let Some(walk) = &mut self.walk else { return Ok(()) };
        let mut entries = match self.entries.take() {
            Some(entries) => entries,
            None => Dir::read_from(walk.folder())?,
        };
        for _ in 0..STEP_ENTRIES {
            let Some(name) = next_name(&mut entries)? else { return self.leave() };
            self.entries_left = self.entries_left.checked_sub(1).ok_or(Errno::DQUOT)?;
            match unlink(walk.folder(), &*name) {
                // Another process may remove or replace it.
                Ok(Unlinked::Gone) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Ok(Unlinked::Folder) => return self.enter(name),
                Err(errno) => return Err(errno),
            }
        }
        self.entries = Some(entries);
        Ok(())
    }

    /// Enters a folder that is not empty.
    fn enter(&mut self, name: CString) -> Result<(), Errno> {
        let Some(walk) = &self.walk else { return Ok(()) };
        match (self.open(walk.folder(), &name), &mut self.walk) {
            (Ok(inner), Some(walk)) => walk.enter(name, inner),
            // Another process removed or replaced it: what is there now is found in the next pass.
            (Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP), _) | (Ok(_), None) => Ok(()),
            (Err(errno), _) => Err(errno),
        }
    }

    /// Removes the folder whose entries are removed, from its parent.
    fn leave(&mut self) -> Result<(), Errno> {
        let Some(walk) = &mut self.walk else { return Ok(()) };
        let Some(emptied) = walk.up()? else {
            self.walk = None;
            // Counted, because the folder may have new entries.
            return self.restart().map(drop);
        };
        match rustix::fs::unlinkat(walk.folder(), &emptied, AtFlags::REMOVEDIR) {
            // An entry that was added or replaced meanwhile is found in the next pass.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn open(&self, folder: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
        match self.rules.unlock {
            true => open_unlocked(folder, name, self.rules.mounts),
            false => open_subfolder(folder, name, self.rules.mounts),
        }
    }
}
