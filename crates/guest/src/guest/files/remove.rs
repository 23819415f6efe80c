//! Removing a file or a whole tree, a few entries at a time.
//!
//! No link is followed: every name is looked up in a folder that is held open. The way back up is checked, because a
//! tenant may move folders meanwhile; only one folder is open at a time, however deep the tree is.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::Target;
use crate::protocol::{Failure, FailureKind, Reply};

/// How many entries are removed before others have their turn.
const BATCH: usize = 64;
/// A tenant that makes entries as fast as they are removed is not followed for ever.
const MOST: usize = 10_000_000;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

pub(in crate::guest) async fn remove(target: &Target, recursive: bool) -> Result<Reply, Failure> {
    let (parent, name) = target
        .path()
        .parent()
        .zip(target.path().file_name())
        .and_then(|(parent, name)| Some((parent, CString::new(name.as_encoded_bytes()).ok()?)))
        .ok_or_else(|| target.failure(FailureKind::Invalid, "not the name of a file or folder"))?;
    let failed = |errno| target.failed(errno);
    let parent = open_parent(parent).map_err(failed)?;
    match unlink(&parent, &name).map_err(failed)? {
        Unlinked::Gone => Ok(Reply::Ok),
        Unlinked::Folder if !recursive => Err(failed(Errno::NOTEMPTY)),
        Unlinked::Folder => {
            tree(parent, name).await.map_err(failed)?;
            Ok(Reply::Ok)
        }
    }
}

fn open_parent(parent: &Path) -> Result<OwnedFd, Errno> {
    // The way to the parent is the caller's, links and all; only what is below is ours to be careful about.
    rustix::fs::open(parent, FOLDER.difference(OFlags::NOFOLLOW), Mode::empty())
}

enum Unlinked {
    Gone,
    /// A folder that is not empty.
    Folder,
}

fn unlink(folder: &OwnedFd, name: &CStr) -> Result<Unlinked, Errno> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        answer => return answer.map(|()| Unlinked::Gone),
    }
    match rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Unlinked::Folder),
        answer => answer.map(|()| Unlinked::Gone),
    }
}

/// A folder on the way down: its name in its parent, and which one it was.
struct Level {
    name: CString,
    parent: (u64, u64),
}

/// Empties and removes the folder of that name, and all below.
async fn tree(top: OwnedFd, name: CString) -> Result<(), Errno> {
    let mut way = vec![Level { name: name.clone(), parent: identity(&top)? }];
    let mut folder = rustix::fs::openat(&top, name.as_c_str(), FOLDER, Mode::empty())?;
    let mut removed = 0;
    while let Some(level) = way.last() {
        tokio::task::yield_now().await;
        match empty(&folder, &mut removed).await? {
            Some(below) => {
                let inner = rustix::fs::openat(&folder, below.as_c_str(), FOLDER, Mode::empty());
                let inner = match inner {
                    Ok(inner) => inner,
                    // Somebody else removed or replaced it.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                    Err(errno) => return Err(errno),
                };
                way.push(Level { name: below, parent: identity(&folder)? });
                folder = inner;
            }
            None => {
                let parent = rustix::fs::openat(&folder, c"..", FOLDER, Mode::empty())?;
                if identity(&parent)? != level.parent {
                    return Err(Errno::STALE);
                }
                match rustix::fs::unlinkat(&parent, level.name.as_c_str(), AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => way.pop(),
                    // Somebody put something in.
                    Err(Errno::NOTEMPTY | Errno::EXIST) => continue,
                    Err(errno) => return Err(errno),
                };
                folder = parent;
            }
        }
    }
    Ok(())
}

fn identity(folder: &OwnedFd) -> Result<(u64, u64), Errno> {
    rustix::fs::fstat(folder).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Removes what can be removed from a folder; gives the first inner folder that is not empty.
async fn empty(folder: &OwnedFd, removed: &mut usize) -> Result<Option<CString>, Errno> {
    let mut entries = Dir::read_from(folder)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        *removed += 1;
        if *removed > MOST {
            return Err(Errno::DQUOT);
        }
        if removed.is_multiple_of(BATCH) {
            tokio::task::yield_now().await;
        }
        match unlink(folder, name) {
            Ok(Unlinked::Gone) | Err(Errno::NOENT) => {}
            Ok(Unlinked::Folder) => return Ok(Some(name.to_owned())),
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}
