//! Writes a file in chunks.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::{TargetPath, check_mode, open};
use crate::guest::channel::GuestChannel;
use crate::protocol::{Failure, FailureKind, GuestReply, WriteMode, WriteOptions};

const NEW_FILE_MODE: u32 = 0o644;
/// Maximum number of attempts to find an unused name.
const MAX_NAME_ATTEMPTS: usize = 16;

pub(in crate::guest) async fn write(
    target: &TargetPath,
    options: &WriteOptions,
    channel: &mut GuestChannel,
) -> Result<GuestReply, Failure> {
    let mode = options.permissions.map(|bits| check_mode(target, bits)).transpose()?;
    if options.parents
        && let Some(parent) = target.path().parent()
    {
        std::fs::create_dir_all(parent).map_err(|error| Failure::from_io(&error, target.given()))?;
    }
    let (file, draft) = if options.atomic {
        let draft = AtomicFile::new(target, options.mode, mode)?;
        (draft.file.try_clone().map_err(|error| Failure::from_io(&error, target.given()))?, Some(draft))
    } else {
        (in_place(target, options.mode, mode)?, None)
    };
    channel.sender.answer(&GuestReply::Ok);
    let mut at = if let WriteMode::At(offset) = options.mode { Some(offset) } else { None };
    let mut written = 0;
    while let Some(bytes) = channel.receiver.next().await {
        write_all(&file, &bytes, &mut at).map_err(|errno| target.os_failure(errno))?;
        written += bytes.len() as u64;
        // Bytes may arrive faster than the disk writes them; other tasks must run, too.
        tokio::task::yield_now().await;
    }
    if let Some(draft) = draft {
        draft.publish(target, options.mode)?;
    }
    Ok(GuestReply::Written(written))
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], at: &mut Option<u64>) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = match at {
            Some(at) => rustix::io::pwrite(file, bytes, *at),
            None => rustix::io::write(file, bytes),
        };
        match written {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(written) => {
                bytes = &bytes[written..];
                if let Some(at) = at {
                    *at += written as u64;
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn in_place(target: &TargetPath, mode: WriteMode, permissions: Option<Mode>) -> Result<OwnedFd, Failure> {
    let flags = match mode {
        WriteMode::Create => OFlags::EXCL,
        WriteMode::Replace => OFlags::TRUNC,
        WriteMode::Append => OFlags::APPEND,
        WriteMode::At(_) => OFlags::empty(),
    };
    let new = permissions.unwrap_or(Mode::from_raw_mode(NEW_FILE_MODE));
    let (file, _) = open::regular(target, OFlags::WRONLY | flags, Some(new))?;
    if let Some(permissions) = permissions {
        rustix::fs::fchmod(&file, permissions).map_err(|errno| target.os_failure(errno))?;
    }
    Ok(file)
}

/// A temporary file, removed on drop unless it is published.
struct AtomicFile {
    folder: OwnedFd,
    name: String,
    file: OwnedFd,
}

impl AtomicFile {
    fn new(target: &TargetPath, mode: WriteMode, permissions: Option<Mode>) -> Result<Self, Failure> {
        if !matches!(mode, WriteMode::Create | WriteMode::Replace) {
            return Err(target.failure(FailureKind::Invalid, "atomic writes must create or replace the file"));
        }
        let failed = |errno| target.os_failure(errno);
        let (parent, name) = split(target)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(parent, flags, Mode::empty()).map_err(failed)?;
        let there = rustix::fs::statat(&folder, name, AtFlags::empty()).ok();
        if let Some(stat) = &there {
            open::must_be_regular(target, stat)?;
            if mode == WriteMode::Create {
                return Err(failed(Errno::EXIST));
            }
        }
        // A replaced file passes on its permissions.
        let existing = there.map(|stat| Mode::from_raw_mode(stat.st_mode & 0o777));
        let permissions = permissions.or(existing).unwrap_or(Mode::from_raw_mode(NEW_FILE_MODE));
        let (name, file) = create_temporary(&folder).map_err(failed)?;
        let draft = Self { folder, name, file };
        rustix::fs::fchmod(&draft.file, permissions).map_err(failed)?;
        Ok(draft)
    }

    fn publish(self, target: &TargetPath, mode: WriteMode) -> Result<(), Failure> {
        let (_, name) = split(target)?;
        let flags = if mode == WriteMode::Create { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        rustix::fs::renameat_with(&self.folder, &self.name, &self.folder, name, flags)
            .map_err(|errno| target.os_failure(errno))
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        // After publishing, the name no longer exists.
        let _gone = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
    }
}

fn split(target: &TargetPath) -> Result<(&std::path::Path, &OsStr), Failure> {
    let parts = target.path().parent().zip(target.path().file_name());
    parts.ok_or_else(|| target.failure(FailureKind::Invalid, "not a file name"))
}

/// Creates a file under an unused name.
fn create_temporary(folder: &OwnedFd) -> Result<(String, OwnedFd), Errno> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..MAX_NAME_ATTEMPTS {
        let name = format!(".belljar-{:x}.part", LAST.fetch_add(1, Ordering::Relaxed));
        match rustix::fs::openat(folder, &name, flags, Mode::from_raw_mode(0o600)) {
            Ok(file) => return Ok((name, file)),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EXIST)
}
