//! Removes a tenant's folder with its contents, whatever the permissions and even while processes write to
//! it.

use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Dir, Mode};
use rustix::io::Errno;

use super::walk::{FolderWalk, grant_access, open_inside};

/// Bounds the work if a process creates entries as fast as they are removed.
const MAX_REMOVED_ENTRIES: usize = 100_000_000;
/// How often removal restarts because a folder was moved.
const MAX_ATTEMPTS: usize = 64;

/// Removes the folder of that name. Succeeds if it does not exist.
pub(super) fn remove(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let mut left = MAX_REMOVED_ENTRIES;
    for _ in 0..MAX_ATTEMPTS {
        match attempt(parent, name, &mut left) {
            Err(Errno::STALE) => {}
            Err(Errno::NOENT) => return Ok(()),
            answer => return answer,
        }
    }
    Err(Errno::STALE)
}

fn attempt(parent: BorrowedFd<'_>, name: &CStr, left: &mut usize) -> Result<(), Errno> {
    let top = open_top(parent, name)?;
    let mut walk = FolderWalk::new(top);
    loop {
        match remove_entries(&walk, left)? {
            Some(below) => enter(&mut walk, below)?,
            None => match walk.up()? {
                Some(emptied) => remove_emptied(walk.folder(), &emptied)?,
                None => break,
            },
        }
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        // A process added an entry.
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(Errno::STALE),
        answer => answer,
    }
}

/// Removes the removable entries of a folder. Returns the first subfolder that is not empty.
fn remove_entries(walk: &FolderWalk, left: &mut usize) -> Result<Option<CString>, Errno> {
    let mut entries = Dir::read_from(walk.folder())?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        *left = left.checked_sub(1).ok_or(Errno::DQUOT)?;
        match rustix::fs::unlinkat(walk.folder(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR) => {}
            Err(errno) => return Err(errno),
        }
        match rustix::fs::unlinkat(walk.folder(), name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(Some(name.to_owned())),
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}

fn enter(walk: &mut FolderWalk, name: CString) -> Result<(), Errno> {
    let entered = match walk.down(name.clone()) {
        Err(Errno::ACCESS) => grant_access(walk.folder(), &name).and_then(|()| walk.down(name)),
        entered => entered,
    };
    match entered {
        Ok(()) => grant_owner_access(walk.folder()),
        // Another process removed or replaced it.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn remove_emptied(folder: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) {
        // An entry that was added or replaced meanwhile is found in the next pass.
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn open_top(parent: BorrowedFd<'_>, name: &CStr) -> Result<std::os::fd::OwnedFd, Errno> {
    let top = match open_inside(parent, name) {
        Err(Errno::ACCESS) => grant_access(parent, name).and_then(|()| open_inside(parent, name)),
        top => top,
    }?;
    grant_owner_access(std::os::fd::AsFd::as_fd(&top))?;
    Ok(top)
}

/// Grants the owner all permissions, which removing the entries of a folder requires.
fn grant_owner_access(folder: BorrowedFd<'_>) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(folder)?.st_mode);
    if mode.contains(Mode::RWXU) { Ok(()) } else { rustix::fs::fchmod(folder, Mode::RWXU) }
}
