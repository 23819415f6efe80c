//! Collects the files below `./artifacts` inside the jail, as its user: regular files only, no link followed,
//! everything bounded.
//!
//! Records on the pipe: a tag (u8), length of the path (u32), length of the content (u64), path, content. A
//! file has tag [`FILE_TAG`]. A record without content names something that is left out, by the code of its
//! reason, or counts more of them ([`MORE_TAG`]). The last record is [`END_TAG`].

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use belljar_model::artifact::{ArtifactBudget, MAX_ARTIFACT_DEPTH, MAX_ARTIFACT_ENTRIES, SkipReason};
use belljar_zygote::syscall::write_all;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::spec::{
    ARTIFACT_END_TAG as END_TAG, ARTIFACT_FILE_TAG as FILE_TAG, ARTIFACT_MORE_TAG as MORE_TAG,
    CollectionRules,
};
use crate::sys::errno;

const OPEN_FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const OPEN_FILE: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// Size of an empty directory on a tmpfs, which counts 20 bytes for each entry.
const EMPTY_TMPFS_DIR_BYTES: i64 = 40;

/// Returns whether there may be artifacts in a workspace that is a directory of a tmpfs. Only the empty
/// directory that every run starts with certainly holds none.
pub(crate) fn may_hold_artifacts(rules: &CollectionRules, workspace: BorrowedFd<'_>) -> bool {
    let own = match rustix::fs::statat(workspace, rules.folder.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(errno) => return errno != Errno::NOENT,
    };
    let same_disk = rustix::fs::fstat(workspace).is_ok_and(|workspace| workspace.st_dev == own.st_dev);
    let is_empty = FileType::from_raw_mode(own.st_mode) == FileType::Directory
        && own.st_nlink == 2
        && own.st_size == EMPTY_TMPFS_DIR_BYTES;
    !(same_disk && is_empty)
}

/// Sends the artifacts in a workspace.
pub(super) fn collect(rules: &CollectionRules, workspace: BorrowedFd<'_>, pipe: &OwnedFd) {
    let budget = ArtifactBudget::new(rules.limits);
    let mut collection = Collection { budget, entries_left: MAX_ARTIFACT_ENTRIES, pipe };
    let name = rules.folder.as_str();
    match rustix::fs::openat(workspace, name, OPEN_FOLDER, Mode::empty()) {
        Ok(folder) => {
            // The only error is that the reader is gone.
            if collection.send_folder(&folder, &[], 0).is_err() {
                return;
            }
        }
        Err(Errno::NOENT) => {}
        Err(Errno::LOOP) => collection.budget.skipped.add(b"", SkipReason::Link),
        // With `O_DIRECTORY`, a link is no directory.
        Err(Errno::NOTDIR) => collection.budget.skipped.add(b"", reason_for_no_folder(workspace, name)),
        Err(_) => collection.budget.skipped.add(b"", SkipReason::Unreadable),
    }
    let _ended = collection.send_end();
}

fn reason_for_no_folder(workspace: BorrowedFd<'_>, name: &str) -> SkipReason {
    let found = rustix::fs::statat(workspace, name, AtFlags::SYMLINK_NOFOLLOW);
    let is_link = found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink);
    if is_link { SkipReason::Link } else { SkipReason::SpecialFile }
}

/// The reader of the pipe is gone.
struct ReaderGone;

/// A collection in progress.
struct Collection<'a> {
    budget: ArtifactBudget,
    entries_left: usize,
    pipe: &'a OwnedFd,
}

impl Collection<'_> {
    /// Sends the files of a folder and of those below it, ordered by name, so that equal runs give equal lists.
    fn send_folder(&mut self, folder: &OwnedFd, path: &[u8], depth: usize) -> Result<(), ReaderGone> {
        for name in self.names(folder, path) {
            let path = match path {
                [] => name.to_bytes().to_vec(),
                path => [path, name.to_bytes()].join(&b'/'),
            };
            let Ok(stat) = rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) else {
                self.budget.skipped.add(&path, SkipReason::Unreadable);
                continue;
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => self.send_file(folder, &name, &path)?,
                FileType::Directory if depth == MAX_ARTIFACT_DEPTH => {
                    self.budget.skipped.add(&path, SkipReason::TooDeep);
                }
                FileType::Directory => match rustix::fs::openat(folder, &name, OPEN_FOLDER, Mode::empty()) {
                    Ok(inner) => self.send_folder(&inner, &path, depth + 1)?,
                    Err(_) => self.budget.skipped.add(&path, SkipReason::Unreadable),
                },
                FileType::Symlink => self.budget.skipped.add(&path, SkipReason::Link),
                _ => self.budget.skipped.add(&path, SkipReason::SpecialFile),
            }
        }
        Ok(())
    }

    /// Returns the sorted names in a folder, as many as may still be examined.
    fn names(&mut self, folder: &OwnedFd, path: &[u8]) -> Vec<CString> {
        let Ok(entries) = Dir::read_from(folder) else {
            self.budget.skipped.add(path, SkipReason::Unreadable);
            return Vec::new();
        };
        let names = entries.flatten().map(|entry| entry.file_name().to_owned());
        let names = names.filter(|name| !matches!(name.to_bytes(), b"." | b".."));
        let mut names: Vec<CString> = names.take(self.entries_left + 1).collect();
        if names.len() > self.entries_left {
            names.truncate(self.entries_left);
            self.budget.skipped.add(path, SkipReason::TooManyEntries);
        }
        self.entries_left -= names.len();
        names.sort();
        names
    }

    fn send_file(&mut self, folder: &OwnedFd, name: &CString, path: &[u8]) -> Result<(), ReaderGone> {
        let Ok(text) = std::str::from_utf8(path) else {
            self.budget.skipped.add(path, SkipReason::Name);
            return Ok(());
        };
        let opened = rustix::fs::openat(folder, name, OPEN_FILE, Mode::empty());
        let opened = opened.and_then(|file| Ok((rustix::fs::fstat(&file)?, file)));
        let (stat, file) = match opened {
            Ok((stat, file)) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                (stat, file)
            }
            _ => {
                self.budget.skipped.add(path, SkipReason::Unreadable);
                return Ok(());
            }
        };
        let len = stat.st_size as u64;
        if !self.budget.admit(text, len) {
            return Ok(());
        }
        self.send_header(FILE_TAG, path, len)?;
        self.send_content(&file, len)
    }

    fn send_content(&self, file: &OwnedFd, len: u64) -> Result<(), ReaderGone> {
        let mut left = len;
        let mut buffer = vec![0; left.min(64 << 10) as usize];
        while left > 0 {
            let wanted = left.min(buffer.len() as u64) as usize;
            let read = rustix::io::read(file, &mut buffer[..wanted]).unwrap_or(0);
            if read == 0 {
                // All other processes are dead, so the file cannot shrink; if it does, zeros keep the framing.
                buffer.fill(0);
            }
            let sent = if read == 0 { wanted } else { read };
            self.write(&buffer[..sent])?;
            left -= sent as u64;
        }
        Ok(())
    }

    /// Sends what was left out, and the end.
    fn send_end(&self) -> Result<(), ReaderGone> {
        for skipped in &self.budget.skipped.named {
            self.send_header(skipped.reason.code(), skipped.path.as_bytes(), 0)?;
        }
        if self.budget.skipped.more > 0 {
            self.send_header(MORE_TAG, b"", self.budget.skipped.more)?;
        }
        self.send_header(END_TAG, b"", 0)
    }

    fn send_header(&self, tag: u8, path: &[u8], len: u64) -> Result<(), ReaderGone> {
        let mut header = Vec::with_capacity(13 + path.len());
        header.push(tag);
        header.extend_from_slice(&(path.len() as u32).to_le_bytes());
        header.extend_from_slice(&len.to_le_bytes());
        header.extend_from_slice(path);
        self.write(&header)
    }

    fn write(&self, bytes: &[u8]) -> Result<(), ReaderGone> {
        write_all(self.pipe.as_raw_fd(), bytes).map_err(errno).map_err(|_| ReaderGone)
    }
}
