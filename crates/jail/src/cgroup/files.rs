//! The small text files of a cgroup, always opened relative to a directory descriptor.
//!
//! The launcher leaves the mount namespace in which it found its cgroups, so no absolute path is valid after
//! discovery: everything here takes a directory fd and a relative name.

use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat, openat, unlinkat};
use rustix::io::{Errno, Result, retry_on_intr};

use super::Error;

/// Maximum number of bytes read; more than the relevant part of any of these files.
const MAX_READ_BYTES: usize = 512;

/// One group's directory in one hierarchy: the parent's fd and the group's number below it.
///
/// Addressing the group by number, without its own fd, saves a pool of ready groups one fd per v1 controller.
#[derive(Clone, Copy)]
pub(super) struct GroupDir<'a> {
    pub(super) parent: BorrowedFd<'a>,
    pub(super) number: &'a str,
    pub(super) open_files: &'a OpenFiles,
}

/// Files of one group that are kept open because they are read or reset repeatedly.
#[derive(Debug, Default)]
pub(super) struct OpenFiles(RefCell<Vec<OpenFile>>);

/// An open file: the fd of the group's parent, its name, and its open flags.
#[derive(Debug)]
struct OpenFile {
    parent: RawFd,
    file: &'static str,
    flags: OFlags,
    opened: OwnedFd,
}

impl OpenFiles {
    fn with<T>(
        &self,
        group: GroupDir<'_>,
        file: &'static str,
        flags: OFlags,
        act: impl FnOnce(&OwnedFd) -> Result<T>,
    ) -> Result<T> {
        let mut open_files = self.0.borrow_mut();
        let parent = group.parent.as_raw_fd();
        let is_it = |open_file: &OpenFile| {
            open_file.parent == parent && open_file.file == file && open_file.flags == flags
        };
        let at = match open_files.iter().position(is_it) {
            Some(at) => at,
            None => {
                let opened = open(group.parent, &group.path(file), flags)?;
                open_files.push(OpenFile { parent, file, flags, opened });
                open_files.len() - 1
            }
        };
        act(&open_files[at].opened)
    }
}

impl GroupDir<'_> {
    pub(super) fn write(self, file: &'static str, text: &str) -> std::result::Result<(), Error> {
        write(self.parent, &self.path(file), text).map_err(|errno| Error::Write { file, errno })
    }

    /// Writes a setting that some kernels lack; succeeds if the file does not exist.
    pub(super) fn write_if_exists(self, file: &'static str, text: &str) -> std::result::Result<(), Error> {
        match self.write(file, text) {
            Err(Error::Write { errno: Errno::NOENT, .. }) => Ok(()),
            other => other,
        }
    }

    pub(super) fn open(self, file: &'static str, flags: OFlags) -> std::result::Result<OwnedFd, Error> {
        open(self.parent, &self.path(file), flags).map_err(|errno| Error::Open { file, errno })
    }

    /// Reads the beginning of a file, which contains everything needed here.
    pub(super) fn read(self, file: &'static str) -> Option<String> {
        let mut bytes = [0; MAX_READ_BYTES];
        let read = |file: &OwnedFd| retry_on_intr(|| rustix::io::pread(file, &mut bytes, 0));
        let len = self.open_files.with(self, file, OFlags::RDONLY, read).ok()?;
        String::from_utf8(bytes[..len].to_vec()).ok()
    }

    /// Writes a setting that is reset after every run.
    pub(super) fn reset(self, file: &'static str, text: &str) -> Result<()> {
        let write = |file: &OwnedFd| retry_on_intr(|| rustix::io::pwrite(file, text.as_bytes(), 0));
        self.open_files.with(self, file, OFlags::WRONLY, write).map(drop)
    }

    /// Returns the only number in a file, such as `memory.peak`.
    pub(super) fn number_in(self, file: &'static str) -> Option<u64> {
        self.read(file)?.trim().parse().ok()
    }

    /// Returns the number after `key` in a file of `key value` lines, such as `memory.events`.
    pub(super) fn value_in(self, file: &'static str, key: &str) -> Option<u64> {
        value(&self.read(file)?, key)
    }

    fn path(self, file: &str) -> String {
        format!("{}/{file}", self.number)
    }
}

/// Returns the number after `key` in text made of `key value` lines.
pub(super) fn value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

pub(super) fn open(dir: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd> {
    retry_on_intr(|| openat(dir, path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()))
}

pub(super) fn open_dir(dir: BorrowedFd<'_>, path: &str) -> Result<OwnedFd> {
    open(dir, path, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Writes a setting with a single `write`, because the kernel treats each write as a complete setting.
pub(super) fn write(dir: BorrowedFd<'_>, path: &str, text: &str) -> Result<()> {
    let file = open(dir, path, OFlags::WRONLY)?;
    retry_on_intr(|| rustix::io::write(&file, text.as_bytes())).map(drop)
}

pub(super) fn read(dir: BorrowedFd<'_>, path: &str) -> Result<String> {
    let mut text = String::new();
    let mut file = File::from(open(dir, path, OFlags::RDONLY)?);
    match file.read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// Returns how often an event has occurred since the last call.
pub(super) fn drain_event(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match retry_on_intr(|| rustix::io::read(event, &mut count)) {
        Ok(8) => u64::from_ne_bytes(count),
        _ => 0,
    }
}

pub(super) fn exists(dir: BorrowedFd<'_>, path: &str) -> bool {
    accessat(dir, path, Access::EXISTS, AtFlags::empty()).is_ok()
}

/// Returns the words of a file such as `cgroup.controllers`; none if it cannot be read.
pub(super) fn words(dir: BorrowedFd<'_>, path: &str) -> Vec<String> {
    read(dir, path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Removes a directory, and returns whether it no longer exists.
pub(super) fn remove_folder(parent: BorrowedFd<'_>, name: &str) -> bool {
    matches!(unlinkat(parent, name, AtFlags::REMOVEDIR), Ok(()) | Err(Errno::NOENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_matched_as_a_whole_word() {
        let events = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 1\n";
        assert_eq!(value(events, "oom"), Some(2));
        assert_eq!(value(events, "oom_kill"), Some(3));
        assert_eq!(value(events, "oom_group"), None);
        assert_eq!(value("oom_kill max\n", "oom_kill"), None);
    }
}
