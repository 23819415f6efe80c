//! Measures a folder's size while others may be writing to it.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use belljar_engine::places::Measured;
use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use super::walk::Walk;

/// The least that an entry counts: each costs some disk space, and some time to count.
const LEAST: u64 = 4 << 10;
/// The most entries that are counted.
const MOST: u64 = 1_000_000;
/// The most bytes of names of folders still to be visited.
const NAMES: usize = 16 << 20;
/// How often counting restarts because a folder was moved.
const ATTEMPTS: usize = 8;
/// The unit of `st_blocks`.
const BLOCK: u64 = 512;

/// Counts until the size exceeds `most`. `top` opens the folder for each attempt.
pub(super) fn measure(top: impl Fn() -> Result<OwnedFd, Errno>, most: u64) -> Result<Measured, Errno> {
    for _ in 0..ATTEMPTS {
        match (Count { most, bytes: 0, entries: 0, names: 0 }).all(Walk::new(top()?)) {
            Err(Errno::STALE) => {}
            Err(Errno::ACCESS) => return Ok(Measured::Unreadable),
            counted => return counted,
        }
    }
    Ok(Measured::Restless)
}

struct Count {
    most: u64,
    bytes: u64,
    entries: u64,
    names: usize,
}

impl Count {
    fn all(mut self, mut walk: Walk) -> Result<Measured, Errno> {
        let mut waiting = vec![self.folder(&walk)?];
        while let Some(folders) = waiting.last_mut() {
            if self.bytes > self.most {
                break;
            }
            if self.entries > MOST || self.names > NAMES {
                return Ok(Measured::TooMany);
            }
            let Some(name) = folders.pop() else {
                waiting.pop();
                walk.up()?;
                continue;
            };
            self.names -= name.as_bytes().len();
            match walk.down(name) {
                Ok(()) => waiting.push(self.folder(&walk)?),
                Err(errno) if is_gone(errno) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Measured::Bytes(self.bytes))
    }

    /// Counts the entries of one folder and returns its subfolders.
    fn folder(&mut self, walk: &Walk) -> Result<Vec<CString>, Errno> {
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
            let mut own = (stat.st_blocks as u64).saturating_mul(BLOCK);
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                self.names += name.to_bytes().len();
                folders.push(name.to_owned());
            } else {
                // Each hard link of the file counts a share of its size.
                own /= (stat.st_nlink as u64).max(1);
            }
            self.bytes = self.bytes.saturating_add(own.max(LEAST));
            if self.bytes > self.most || self.entries > MOST || self.names > NAMES {
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
