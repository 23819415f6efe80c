//! Removes a file or a whole tree, a few entries at a time.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use belljar_beneath::folder::OPEN_FOLDER_FLAGS;
use belljar_beneath::{Removal, RemovalRules, Unlinked, unlink};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::TargetPath;
use crate::protocol::{Failure, FailureKind, GuestReply};

pub(in crate::guest) async fn remove(target: &TargetPath, recursive: bool) -> Result<GuestReply, Failure> {
    let (parent, name) = target
        .path()
        .parent()
        .zip(target.path().file_name())
        .and_then(|(parent, name)| Some((parent, CString::new(name.as_encoded_bytes()).ok()?)))
        .ok_or_else(|| target.failure(FailureKind::Invalid, "not a file or folder name"))?;
    let failed = |errno| target.os_failure(errno);
    let parent = open_parent(parent).map_err(failed)?;
    match unlink(&parent, &*name).map_err(failed)? {
        Unlinked::Gone => {}
        Unlinked::Folder if !recursive => return Err(failed(Errno::NOTEMPTY)),
        Unlinked::Folder => {
            let removal = Removal::new(parent.as_fd(), name, RemovalRules::AS_USER);
            let mut removal = removal.map_err(failed)?;
            while removal.step().map_err(failed)? {
                // Other tasks must run, too.
                tokio::task::yield_now().await;
            }
        }
    }
    Ok(GuestReply::Ok)
}

fn open_parent(parent: &Path) -> Result<OwnedFd, Errno> {
    // The path to the parent is the caller's and may contain symlinks; only the tree below it needs care.
    rustix::fs::open(parent, OPEN_FOLDER_FLAGS.difference(OFlags::NOFOLLOW), Mode::empty())
}
