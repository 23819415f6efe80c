//! Operations on files. Paths need no confinement: they are resolved here, as the sandbox user, whose
//! permissions apply. The operations must not block this one thread, and must be safe if the tenant swaps
//! paths meanwhile.

mod list;
mod open;
mod read;
mod remove;
mod write;

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags, Stat};
use rustix::io::Errno;

pub(super) use list::list;
pub(super) use read::read;
pub(super) use remove::remove;
pub(super) use write::write;

use crate::protocol::{DiskSpace, Failure, FailureKind, FileKind, FileMetadata, GuestReply};

/// Permission bits that may be set. Seccomp also refuses set-id bits; this check gives a clear error.
const ALLOWED_MODE_BITS: u32 = 0o1777;

/// The folder in which relative paths start.
#[derive(Debug)]
pub(super) struct WorkDir<'a>(&'a str);

/// A path as given and as resolved.
#[derive(Debug)]
pub(super) struct TargetPath {
    given: String,
    path: PathBuf,
}

impl<'a> WorkDir<'a> {
    pub(super) fn new(workdir: &'a str) -> Self {
        Self(workdir)
    }

    pub(super) fn resolve(&self, given: String) -> Result<TargetPath, Failure> {
        if given.contains('\0') {
            return Err(Failure::new(
                FailureKind::Invalid,
                given.replace('\0', "\u{fffd}"),
                "a path cannot contain NUL",
            ));
        }
        // `join("")` would leave a trailing slash, which resolves a symlink.
        let path = if given.is_empty() { PathBuf::from(self.0) } else { Path::new(self.0).join(&given) };
        Ok(TargetPath { given, path })
    }
}

impl TargetPath {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path as given, for errors.
    pub(super) fn given(&self) -> String {
        if self.given.is_empty() { self.path.display().to_string() } else { self.given.clone() }
    }

    pub(super) fn os_failure(&self, errno: Errno) -> Failure {
        Failure::from_io(&errno.into(), self.given())
    }

    pub(super) fn failure(&self, kind: FailureKind, message: &str) -> Failure {
        Failure::new(kind, self.given(), message)
    }
}

pub(super) fn stat(target: &TargetPath, follow: bool) -> Result<GuestReply, Failure> {
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let stat = rustix::fs::statat(CWD, target.path(), flags).map_err(|errno| target.os_failure(errno))?;
    let mut metadata = metadata(&stat);
    if metadata.kind == FileKind::Link {
        metadata.target = link_target(CWD, target.path());
    }
    Ok(GuestReply::Metadata(metadata))
}

/// Returns the usage of the file system that contains a path.
pub(super) fn space(target: &TargetPath) -> Result<GuestReply, Failure> {
    let found = rustix::fs::statvfs(target.path()).map_err(|errno| target.os_failure(errno))?;
    let used_bytes = found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(found.f_frsize);
    let counts_files = found.f_files > 0;
    let no_inode = counts_files && found.f_ffree == 0;
    Ok(GuestReply::Space(DiskSpace { used_bytes, full: found.f_bavail == 0 || no_inode, counts_files }))
}

/// Converts the kernel's metadata of a file.
fn metadata(stat: &Stat) -> FileMetadata {
    let seconds = i128::from(stat.st_mtime) * 1000 + i128::from(stat.st_mtime_nsec) / 1_000_000;
    FileMetadata {
        kind: match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Link,
            _ => FileKind::Other,
        },
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        modified_ms: i64::try_from(seconds).unwrap_or_default(),
        target: None,
    }
}

fn link_target(folder: impl std::os::fd::AsFd, path: impl rustix::path::Arg) -> Option<String> {
    let target = rustix::fs::readlinkat(folder, path, Vec::new()).ok()?;
    Some(String::from_utf8_lossy(target.as_bytes()).into_owned())
}

pub(super) fn make_folder(
    target: &TargetPath,
    parents: bool,
    permissions: Option<u32>,
) -> Result<GuestReply, Failure> {
    let mode = permissions.map(|bits| check_mode(target, bits)).transpose()?;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(parents).mode(0o755);
    builder.create(target.path()).map_err(|error| Failure::from_io(&error, target.given()))?;
    match mode {
        Some(mode) => apply_mode(target, mode),
        None => Ok(GuestReply::Ok),
    }
}

pub(super) fn rename(from: &TargetPath, to: &TargetPath, replace: bool) -> Result<GuestReply, Failure> {
    let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    match rustix::fs::renameat_with(CWD, from.path(), CWD, to.path(), flags) {
        Ok(()) => Ok(GuestReply::Ok),
        // The kernel does not report which of the two paths is missing.
        Err(Errno::NOENT) if from.path().symlink_metadata().is_ok() => Err(to.os_failure(Errno::NOENT)),
        Err(errno @ (Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR)) => Err(to.os_failure(errno)),
        Err(errno) => Err(from.os_failure(errno)),
    }
}

pub(super) fn set_mode(target: &TargetPath, mode: u32) -> Result<GuestReply, Failure> {
    apply_mode(target, check_mode(target, mode)?)
}

fn apply_mode(target: &TargetPath, mode: Mode) -> Result<GuestReply, Failure> {
    rustix::fs::chmod(target.path(), mode).map_err(|errno| target.os_failure(errno))?;
    Ok(GuestReply::Ok)
}

fn check_mode(target: &TargetPath, bits: u32) -> Result<Mode, Failure> {
    if bits & !ALLOWED_MODE_BITS != 0 {
        return Err(target.failure(FailureKind::Invalid, "only permission bits up to 1777 can be set"));
    }
    Ok(Mode::from_raw_mode(bits))
}
