//! Collects `./artifacts` inside the jail, as its user: regular files only, no link followed, everything
//! bounded.
//!
//! Each file on the pipe: length of its name (u32), length of its content (u64), name, content.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use belljar_zygote::syscall::write_all;
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::spec::ArtifactRules;
use crate::sys::errno;

/// Maximum number of directory entries examined.
const MAX_ENTRIES: usize = 10_000;

/// Sends the files in `folder` that match the rules.
pub(super) fn collect(rules: &ArtifactRules, from: BorrowedFd<'_>, folder: &str, pipe: &OwnedFd) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::openat(from, folder, flags, Mode::empty()) else { return };
    let mut left = rules.count;
    for name in matching_names(&folder, rules) {
        match send(rules, &folder, &name, pipe) {
            Ok(()) => left -= 1,
            // The reader is gone.
            Err(Errno::PIPE) => return,
            // A file that is too large or unreadable is skipped and does not count.
            Err(_) => {}
        }
        if left == 0 {
            return;
        }
    }
}

/// Returns the names of matching files, sorted, so that equal runs give equal lists.
fn matching_names(folder: &OwnedFd, rules: &ArtifactRules) -> Vec<String> {
    let Ok(entries) = Dir::read_from(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .take(MAX_ENTRIES)
        .flatten()
        .filter(|entry| matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown))
        .filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned))
        .filter(|name| !name.starts_with('.') && has_allowed_extension(name, rules))
        .collect();
    names.sort();
    names
}

fn has_allowed_extension(name: &str, rules: &ArtifactRules) -> bool {
    name.rsplit_once('.')
        .is_some_and(|(_, ending)| rules.extensions.iter().any(|e| e.eq_ignore_ascii_case(ending)))
}

fn send(rules: &ArtifactRules, folder: &OwnedFd, name: &str, pipe: &OwnedFd) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    let len = stat.st_size as u64;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || len == 0 || len > rules.file_bytes {
        return Err(Errno::INVAL);
    }
    let mut header = Vec::with_capacity(12 + name.len());
    header.extend_from_slice(&(name.len() as u32).to_le_bytes());
    header.extend_from_slice(&len.to_le_bytes());
    header.extend_from_slice(name.as_bytes());
    write_all(pipe.as_raw_fd(), &header).map_err(errno)?;
    let mut left = len as usize;
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        let wanted = left.min(buffer.len());
        let read = rustix::io::read(&file, &mut buffer[..wanted])?;
        if read == 0 {
            // All other processes are dead, so this cannot happen; if it does, zeros keep the framing intact.
            buffer[..wanted].fill(0);
        }
        let read = if read == 0 { wanted } else { read };
        write_all(pipe.as_raw_fd(), &buffer[..read]).map_err(errno)?;
        left -= read;
    }
    Ok(())
}
