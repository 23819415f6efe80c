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

use crate::protocol::{Failure, FailureKind, FileKind, Metadata, Reply, Space};

/// Permission bits that may be set. Seccomp also refuses set-id bits; this check gives a clear error.
const SETTABLE: u32 = 0o1777;

/// The folder in which relative paths start.
#[derive(Debug)]
pub(super) struct Place<'a>(&'a str);

/// A path as given and as resolved.
#[derive(Debug)]
pub(super) struct Target {
    said: String,
    path: PathBuf,
}

impl<'a> Place<'a> {
    pub(super) fn new(workdir: &'a str) -> Self {
        Self(workdir)
    }

    pub(super) fn at(&self, said: String) -> Result<Target, Failure> {
        if said.contains('\0') {
            return Err(Failure::new(
                FailureKind::Invalid,
                said.replace('\0', "\u{fffd}"),
                "a path cannot contain NUL",
            ));
        }
        // `join("")` would leave a trailing slash, which resolves a symlink.
        let path = if said.is_empty() { PathBuf::from(self.0) } else { Path::new(self.0).join(&said) };
        Ok(Target { said, path })
    }
}

impl Target {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path as given, for errors.
    pub(super) fn said(&self) -> String {
        if self.said.is_empty() { self.path.display().to_string() } else { self.said.clone() }
    }

    pub(super) fn failed(&self, errno: Errno) -> Failure {
        Failure::of_io(&errno.into(), self.said())
    }

    pub(super) fn failure(&self, kind: FailureKind, message: &str) -> Failure {
        Failure::new(kind, self.said(), message)
    }
}

pub(super) fn stat(target: &Target, follow: bool) -> Result<Reply, Failure> {
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let stat = rustix::fs::statat(CWD, target.path(), flags).map_err(|errno| target.failed(errno))?;
    let mut metadata = metadata(&stat);
    if metadata.kind == FileKind::Link {
        metadata.target = link_target(CWD, target.path());
    }
    Ok(Reply::Metadata(metadata))
}

/// Returns the usage of the file system that contains a path.
pub(super) fn space(target: &Target) -> Result<Reply, Failure> {
    let found = rustix::fs::statvfs(target.path()).map_err(|errno| target.failed(errno))?;
    let used_bytes = found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(found.f_frsize);
    let counts_files = found.f_files > 0;
    let no_inode = counts_files && found.f_ffree == 0;
    Ok(Reply::Space(Space { used_bytes, full: found.f_bfree == 0 || no_inode, counts_files }))
}

/// Converts the kernel's metadata of a file.
fn metadata(stat: &Stat) -> Metadata {
    let seconds = i128::from(stat.st_mtime) * 1000 + i128::from(stat.st_mtime_nsec) / 1_000_000;
    Metadata {
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
    target: &Target,
    parents: bool,
    permissions: Option<u32>,
) -> Result<Reply, Failure> {
    let mode = permissions.map(|bits| settable(target, bits)).transpose()?;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(parents).mode(0o755);
    builder.create(target.path()).map_err(|error| Failure::of_io(&error, target.said()))?;
    match mode {
        Some(mode) => set(target, mode),
        None => Ok(Reply::Ok),
    }
}

pub(super) fn rename(from: &Target, to: &Target, replace: bool) -> Result<Reply, Failure> {
    let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    match rustix::fs::renameat_with(CWD, from.path(), CWD, to.path(), flags) {
        Ok(()) => Ok(Reply::Ok),
        // The kernel does not report which of the two paths is missing.
        Err(Errno::NOENT) if from.path().symlink_metadata().is_ok() => Err(to.failed(Errno::NOENT)),
        Err(errno @ (Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR)) => Err(to.failed(errno)),
        Err(errno) => Err(from.failed(errno)),
    }
}

pub(super) fn set_mode(target: &Target, mode: u32) -> Result<Reply, Failure> {
    set(target, settable(target, mode)?)
}

fn set(target: &Target, mode: Mode) -> Result<Reply, Failure> {
    rustix::fs::chmod(target.path(), mode).map_err(|errno| target.failed(errno))?;
    Ok(Reply::Ok)
}

fn settable(target: &Target, bits: u32) -> Result<Mode, Failure> {
    if bits & !SETTABLE != 0 {
        return Err(target.failure(FailureKind::Invalid, "only permission bits up to 1777 can be set"));
    }
    Ok(Mode::from_raw_mode(bits))
}
