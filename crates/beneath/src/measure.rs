//! Measures the size of a tree while others may be writing to it.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use crate::folder::{Mounts, next_name};
use crate::walk::FolderWalk;

/// The least that an entry counts: each costs some disk space, and some time to count.
const MIN_ENTRY_BYTES: u64 = 4 << 10;
/// The most bytes of names of folders still to be visited.
const MAX_PENDING_NAME_BYTES: usize = 16 << 20;
/// How often counting restarts because a folder was moved.
const MAX_ATTEMPTS: usize = 8;
/// The unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Limits of what is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasureLimits {
    /// Counting ends beyond this size.
    pub bytes: u64,
    /// Number of files, folders and links.
    pub entries: u64,
    /// Nesting depth of folders.
    pub depth: usize,
}

/// The size of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeSize {
    /// The disk usage. Beyond the limit, a part of it.
    Bytes(u64),
    /// The tree has more entries, or is nested deeper, than the limits allow.
    TooMany,
    /// A folder in it cannot be read.
    Unreadable,
    /// Folders are moved faster than they are counted.
    KeepsChanging,
}

/// Measures a tree. `top` opens its folder for each attempt. Follows no symlink, and enters no mounted file
/// system.
///
/// # Errors
/// Fails if the folder cannot be opened, or with an error of the disk.
pub fn measure(top: impl Fn() -> Result<OwnedFd, Errno>, limits: MeasureLimits) -> Result<TreeSize, Errno> {
    for _ in 0..MAX_ATTEMPTS {
        let counter = UsageCounter { limits, bytes: 0, entries: 0, pending_name_bytes: 0 };
        match counter.count_all(FolderWalk::new(top()?, Mounts::Refuse)) {
            Err(Errno::STALE) => {}
            Err(Errno::ACCESS) => return Ok(TreeSize::Unreadable),
            counted => return counted,
        }
    }
    Ok(TreeSize::KeepsChanging)
}

struct UsageCounter {
    limits: MeasureLimits,
    bytes: u64,
    entries: u64,
    pending_name_bytes: usize,
}

impl UsageCounter {
    fn count_all(mut self, mut walk: FolderWalk) -> Result<TreeSize, Errno> {
        let mut waiting = vec![self.count_folder(&walk)?];
        while let Some(folders) = waiting.last_mut() {
            if self.bytes > self.limits.bytes {
                break;
            }
            if self.is_too_much() {
                return Ok(TreeSize::TooMany);
            }
            let Some(name) = folders.pop() else {
                waiting.pop();
                walk.up()?;
                continue;
            };
            if walk.depth() == self.limits.depth {
                return Ok(TreeSize::TooMany);
            }
            self.pending_name_bytes -= name.as_bytes().len();
            match walk.down(name) {
                Ok(()) => waiting.push(self.count_folder(&walk)?),
                Err(errno) if is_gone(errno) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(TreeSize::Bytes(self.bytes))
    }

    /// Counts the entries of one folder and returns its subfolders.
    fn count_folder(&mut self, walk: &FolderWalk) -> Result<Vec<CString>, Errno> {
        let mut folders = Vec::new();
        let mut entries = Dir::read_from(walk.folder())?;
        while let Some(name) = next_name(&mut entries)? {
            let stat = match rustix::fs::statat(walk.folder(), &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(errno) if is_gone(errno) => continue,
                Err(errno) => return Err(errno),
            };
            self.entries += 1;
            let mut own = (stat.st_blocks as u64).saturating_mul(BLOCK_BYTES);
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                self.pending_name_bytes += name.as_bytes().len();
                folders.push(name);
            } else {
                // Each hard link of the file counts a share of its size.
                own /= (stat.st_nlink as u64).max(1);
            }
            self.bytes = self.bytes.saturating_add(own.max(MIN_ENTRY_BYTES));
            if self.bytes > self.limits.bytes || self.is_too_much() {
                break;
            }
        }
        Ok(folders)
    }

    fn is_too_much(&self) -> bool {
        self.entries > self.limits.entries || self.pending_name_bytes > MAX_PENDING_NAME_BYTES
    }
}

/// Returns whether the entry was removed or replaced meanwhile.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}
