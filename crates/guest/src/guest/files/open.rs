//! Opens regular files only: a pipe or a device could block the sandbox, or never end.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::TargetPath;
use crate::protocol::{Failure, FailureKind};

/// Opens a regular file. `mode` is the mode of a new file; with `None`, the file must exist.
pub(super) fn regular(
    target: &TargetPath,
    flags: OFlags,
    mode: Option<Mode>,
) -> Result<(OwnedFd, Stat), Failure> {
    // Checked first, because opening can have side effects: the writer of a pipe would see a reader.
    match rustix::fs::statat(CWD, target.path(), AtFlags::empty()) {
        Ok(stat) => must_be_regular(target, &stat)?,
        Err(Errno::NOENT) if mode.is_some() => {}
        Err(errno) => return Err(target.os_failure(errno)),
    }
    // Checked again below, because the path may have been swapped. The open file cannot change its type.
    let safely = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let create = if mode.is_some() { OFlags::CREATE } else { OFlags::empty() };
    let file = rustix::fs::open(target.path(), flags | safely | create, mode.unwrap_or(Mode::empty()))
        .map_err(|errno| target.os_failure(errno))?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| target.os_failure(errno))?;
    must_be_regular(target, &stat)?;
    Ok((file, stat))
}

/// Refuses folders, pipes, sockets and devices.
pub(super) fn must_be_regular(target: &TargetPath, stat: &Stat) -> Result<(), Failure> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(target.failure(FailureKind::IsADirectory, "is a folder")),
        _ => Err(target.failure(FailureKind::NotAFile, "not a regular file")),
    }
}

/// Opens a folder for listing.
pub(super) fn folder(target: &TargetPath) -> Result<OwnedFd, Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(target.path(), flags, Mode::empty()).map_err(|errno| target.os_failure(errno))
}
