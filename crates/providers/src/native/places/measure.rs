//! Measures a folder's size while others may be writing to it.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use belljar_engine::host_storage::VolumeUsage;
use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use super::walk::FolderWalk;

/// The least that an entry counts: each costs some disk space, and some time to count.
const MIN_ENTRY_BYTES: u64 = 4 << 10;
/// The most entries that are counted.
const MAX_ENTRIES: u64 = 1_000_000;
/// The most bytes of names of folders still to be visited.
const MAX_PENDING_NAME_BYTES: usize = 16 << 20;
/// How often counting restarts because a folder was moved.
const MAX_ATTEMPTS: usize = 8;
/// The unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Counts until the size exceeds `most`. `top` opens the folder for each attempt.
pub(super) fn measure(top: impl Fn() -> Result<OwnedFd, Errno>, most: u64) -> Result<VolumeUsage, Errno> {
    for _ in 0..MAX_ATTEMPTS {
        match (UsageCounter { max_bytes: most, bytes: 0, entries: 0, pending_name_bytes: 0 })
            .count_all(FolderWalk::new(top()?))
        {
            Err(Errno::STALE) => {}
            Err(Errno::ACCESS) => return Ok(VolumeUsage::Unreadable),
            counted => return counted,
        }
    }
    Ok(VolumeUsage::KeepsChanging)
}

struct UsageCounter {
    max_bytes: u64,
    bytes: u64,
    entries: u64,
    pending_name_bytes: usize,
}

impl UsageCounter {
    fn count_all(mut self, mut walk: FolderWalk) -> Result<VolumeUsage, Errno> {
        let mut waiting = vec![self.count_folder(&walk)?];
        while let Some(folders) = waiting.last_mut() {
            if self.bytes > self.max_bytes {
                break;
            }
            if self.entries > MAX_ENTRIES || self.pending_name_bytes > MAX_PENDING_NAME_BYTES {
                return Ok(VolumeUsage::TooMany);
            }
            let Some(name) = folders.pop() else {
                waiting.pop();
                walk.up()?;
                continue;
            };
            self.pending_name_bytes -= name.as_bytes().len();
            match walk.down(name) {
                Ok(()) => waiting.push(self.count_folder(&walk)?),
                Err(errno) if is_gone(errno) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(VolumeUsage::Bytes(self.bytes))
    }

    /// Counts the entries of one folder and returns its subfolders.
    fn count_folder(&mut self, walk: &FolderWalk) -> Result<Vec<CString>, Errno> {
        let mut folders = Vec::new();
        let mut entries = Dir::read_from(walk.folder())?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name: &CStr = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let stat = match rustix::fs::statat(walk.folder(), name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(errno) if is_gone(errno) => continue,
                Err(errno) => return Err(errno),
            };
            self.entries += 1;
            let mut own = (stat.st_blocks as u64).saturating_mul(BLOCK_BYTES);
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                self.pending_name_bytes += name.to_bytes().len();
                folders.push(name.to_owned());
            } else {
                // Each hard link of the file counts a share of its size.
                own /= (stat.st_nlink as u64).max(1);
            }
            self.bytes = self.bytes.saturating_add(own.max(MIN_ENTRY_BYTES));
            if self.bytes > self.max_bytes
                || self.entries > MAX_ENTRIES
                || self.pending_name_bytes > MAX_PENDING_NAME_BYTES
            {
                break;
            }
        }
        Ok(folders)
    }
}

/// Returns whether the entry was removed or replaced meanwhile.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}
