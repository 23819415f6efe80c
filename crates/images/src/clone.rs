//! Clones a tree by hard links. Files with a name in the store are never written: a changed file is a new
//! one. So each layer is unpacked once, and images share the files of common layers.

use std::os::fd::{AsFd, BorrowedFd};

use belljar_beneath::folder::{OPEN_FOLDER_FLAGS, names};
use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;

/// Maximum nesting depth.
pub(crate) const MAX_DEPTH: usize = 256;
pub(crate) const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);

/// Clones everything below one folder into another one.
pub(crate) fn clone_tree(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    below(from, to, 0)
}

fn below(from: BorrowedFd<'_>, to: BorrowedFd<'_>, depth: usize) -> Result<(), Errno> {
    if depth > MAX_DEPTH {
        return Err(Errno::NAMETOOLONG);
    }
    for name in names(from, usize::MAX)? {
        let stat = rustix::fs::statat(from, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            rustix::fs::linkat(from, &name, to, &name, AtFlags::empty())?;
            continue;
        }
        rustix::fs::mkdirat(to, &name, FOLDER_MODE)?;
        let (inner, new) = (
            rustix::fs::openat(from, &name, OPEN_FOLDER_FLAGS, Mode::empty())?,
            rustix::fs::openat(to, &name, OPEN_FOLDER_FLAGS, Mode::empty())?,
        );
        rustix::fs::fchmod(&new, FOLDER_MODE)?;
        below(inner.as_fd(), new.as_fd(), depth + 1)?;
    }
    Ok(())
}
