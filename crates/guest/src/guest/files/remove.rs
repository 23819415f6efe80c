//! Removes a file or a whole tree, a few entries at a time.
//!
//! Follows no symlink: every name is looked up in an open folder. The way back up is checked, because a
//! tenant may move folders meanwhile. Only one folder is open at a time, regardless of the depth.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::TargetPath;
use crate::protocol::{Failure, FailureKind, GuestReply};

/// Number of entries removed before other tasks run.
const BATCH: usize = 64;
/// Bounds the removal if a tenant creates entries as fast as they are removed.
const MAX_REMOVED_ENTRIES: usize = 10_000_000;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

pub(in crate::guest) async fn remove(target: &TargetPath, recursive: bool) -> Result<GuestReply, Failure> {
    let (parent, name) = target
        .path()
        .parent()
        .zip(target.path().file_name())
        .and_then(|(parent, name)| Some((parent, CString::new(name.as_encoded_bytes()).ok()?)))
        .ok_or_else(|| target.failure(FailureKind::Invalid, "not a file or folder name"))?;
    let failed = |errno| target.os_failure(errno);
    let parent = open_parent(parent).map_err(failed)?;
    match unlink(&parent, &name).map_err(failed)? {
        UnlinkResult::Gone => Ok(GuestReply::Ok),
        UnlinkResult::Folder if !recursive => Err(failed(Errno::NOTEMPTY)),
        UnlinkResult::Folder => {
            remove_tree(parent, name).await.map_err(failed)?;
            Ok(GuestReply::Ok)
        }
    }
}

fn open_parent(parent: &Path) -> Result<OwnedFd, Errno> {
    // The path to the parent is the caller's and may contain symlinks; only the tree below it needs care.
    rustix::fs::open(parent, FOLDER.difference(OFlags::NOFOLLOW), Mode::empty())
}

enum UnlinkResult {
    Gone,
    /// A folder that is not empty.
    Folder,
}

fn unlink(folder: &OwnedFd, name: &CStr) -> Result<UnlinkResult, Errno> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        answer => return answer.map(|()| UnlinkResult::Gone),
    }
    match rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(UnlinkResult::Folder),
        answer => answer.map(|()| UnlinkResult::Gone),
    }
}

/// A folder on the way down: its name, and the identity of its parent.
struct RemovalLevel {
    name: CString,
    parent: (u64, u64),
}

/// Removes a folder with all its content.
async fn remove_tree(top: OwnedFd, name: CString) -> Result<(), Errno> {
    let mut way = vec![RemovalLevel { name: name.clone(), parent: identity(&top)? }];
    let mut folder = rustix::fs::openat(&top, name.as_c_str(), FOLDER, Mode::empty())?;
    let mut removed = 0;
    while let Some(level) = way.last() {
        tokio::task::yield_now().await;
        match empty_folder(&folder, &mut removed).await? {
            Some(below) => {
                let inner = rustix::fs::openat(&folder, below.as_c_str(), FOLDER, Mode::empty());
                let inner = match inner {
                    Ok(inner) => inner,
                    // The tenant removed or replaced it meanwhile.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                    Err(errno) => return Err(errno),
                };
                way.push(RemovalLevel { name: below, parent: identity(&folder)? });
                folder = inner;
            }
            None => {
                let parent = rustix::fs::openat(&folder, c"..", FOLDER, Mode::empty())?;
                if identity(&parent)? != level.parent {
                    return Err(Errno::STALE);
                }
                match rustix::fs::unlinkat(&parent, level.name.as_c_str(), AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => way.pop(),
                    // The tenant created an entry meanwhile.
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

/// Removes the entries of a folder; returns the first subfolder that is not empty.
async fn empty_folder(folder: &OwnedFd, removed: &mut usize) -> Result<Option<CString>, Errno> {
    let mut entries = Dir::read_from(folder)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        *removed += 1;
        if *removed > MAX_REMOVED_ENTRIES {
            return Err(Errno::DQUOT);
        }
        if removed.is_multiple_of(BATCH) {
            tokio::task::yield_now().await;
        }
        match unlink(folder, name) {
            Ok(UnlinkResult::Gone) | Err(Errno::NOENT) => {}
            Ok(UnlinkResult::Folder) => return Ok(Some(name.to_owned())),
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}
