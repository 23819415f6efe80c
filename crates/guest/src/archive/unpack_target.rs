//! The folder into which an archive is unpacked. Every name is looked up in an open folder, no link is
//! followed, and all output is counted.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use super::ArchiveError;
use super::path::{InnerPath, to_text};
use crate::flow_control::CHUNK_BYTES;
use crate::protocol::{ArchiveLimits, UnpackSummary};

/// Output that is always allowed regardless of the compression ratio: small archives compress well.
const RATIO_EXEMPT_BYTES: u64 = 1 << 20;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The attributes of a file, according to the archive.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EntryAttributes {
    pub(super) mode: Option<u32>,
    pub(super) modified: Option<i64>,
}

/// The target folder, and what has been unpacked so far.
#[derive(Debug)]
pub(super) struct UnpackTarget {
    root: OwnedFd,
    limits: ArchiveLimits,
    unpacked: UnpackSummary,
}

impl UnpackTarget {
    pub(super) fn open(path: &Path, limits: ArchiveLimits) -> Result<Self, ArchiveError> {
        let flags = FOLDER.difference(OFlags::NOFOLLOW);
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(|errno| ArchiveError::Io { entry: path.display().to_string(), error: errno.into() })?;
        Ok(Self { root, limits, unpacked: UnpackSummary::default() })
    }

    pub(super) fn unpacked(&self) -> UnpackSummary {
        self.unpacked
    }

    /// Counts one more entry.
    pub(super) fn count_entry(&mut self) -> Result<(), ArchiveError> {
        self.unpacked.entries += 1;
        if self.unpacked.entries > self.limits.entries {
            return Err(ArchiveError::TooLarge("the archive has too many entries"));
        }
        Ok(())
    }

    pub(super) fn folder(
        &mut self,
        path: &InnerPath<'_>,
        about: EntryAttributes,
    ) -> Result<(), ArchiveError> {
        let folder = self.open_folders(path, path.parts())?;
        if let Some(mode) = about.mode {
            // The unpacking user must be able to write to the folder.
            let mode = Mode::from_raw_mode((mode & 0o777) | 0o700);
            rustix::fs::fchmod(&folder, mode).map_err(|errno| io_error(path, errno))?;
        }
        Ok(())
    }

    /// Unpacks a file. `packed` returns how many bytes of the archive were read so far.
    pub(super) fn file(
        &mut self,
        path: &InnerPath<'_>,
        about: EntryAttributes,
        content: &mut dyn Read,
        packed: &dyn Fn() -> u64,
    ) -> Result<(), ArchiveError> {
        let (folders, name) = path.split();
        let folder = self.open_folders(path, folders)?;
        let mode = Mode::from_raw_mode(about.mode.map_or(0o644, |mode| mode & 0o777));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = create_replacing(&folder, name, || rustix::fs::openat(&folder, name, flags, mode))
            .map_err(|errno| io_error(path, errno))?;
        let mut file = File::from(file);
        self.copy(path, content, &mut file, packed)?;
        if let Some(modified) = about.modified {
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: Timespec { tv_sec: modified, tv_nsec: 0 },
            };
            // The file system may not support this time; that is no reason to fail.
            let _best_effort = rustix::fs::futimens(&file, &times);
        }
        Ok(())
    }

    fn copy(
        &mut self,
        path: &InnerPath<'_>,
        content: &mut dyn Read,
        file: &mut File,
        packed: &dyn Fn() -> u64,
    ) -> Result<(), ArchiveError> {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let len = match content.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(len) => len,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(ArchiveError::Archive(error)),
            };
            self.unpacked.bytes += len as u64;
            if self.unpacked.bytes > self.limits.bytes {
                return Err(ArchiveError::TooLarge("the unpacked content is too large"));
            }
            let allowed = packed().saturating_mul(self.limits.ratio.into()).max(RATIO_EXEMPT_BYTES);
            if self.unpacked.bytes > allowed {
                return Err(ArchiveError::TooLarge("the compression ratio is too high"));
            }
            let written = file.write_all(&buffer[..len]);
            written.map_err(|error| ArchiveError::Io { entry: path.display(), error })?;
        }
    }

    pub(super) fn link(&mut self, path: &InnerPath<'_>, target: &[u8]) -> Result<(), ArchiveError> {
        if !self.limits.any_link && !path.may_link_to(target) {
            return Err(ArchiveError::Hostile { entry: path.display(), why: "link leads out of the folder" });
        }
        let (folders, name) = path.split();
        let folder = self.open_folders(path, folders)?;
        create_replacing(&folder, name, || rustix::fs::symlinkat(target, &folder, name))
            .map_err(|errno| io_error(path, errno))
    }

    /// Creates a hard link to an entry that was unpacked before.
    pub(super) fn hard_link(
        &mut self,
        path: &InnerPath<'_>,
        target: &InnerPath<'_>,
    ) -> Result<(), ArchiveError> {
        let (from_folders, from_name) = target.split();
        let from = self.open_folders(target, from_folders)?;
        let (folders, name) = path.split();
        let folder = self.open_folders(path, folders)?;
        // Without AT_SYMLINK_FOLLOW, a hard link to a symlink is that symlink.
        create_replacing(&folder, name, || {
            rustix::fs::linkat(&from, from_name, &folder, name, AtFlags::empty())
        })
        .map_err(|errno| io_error(path, errno))
    }

    /// Opens nested folders below the root one by one, creating missing ones.
    fn open_folders(&self, path: &InnerPath<'_>, parts: &[&[u8]]) -> Result<OwnedFd, ArchiveError> {
        let mut folder =
            self.root.try_clone().map_err(|error| ArchiveError::Io { entry: path.display(), error })?;
        for part in parts {
            let mut inner = rustix::fs::openat(&folder, *part, FOLDER, Mode::empty());
            if matches!(inner, Err(Errno::NOENT)) {
                match rustix::fs::mkdirat(&folder, *part, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(io_error(path, errno)),
                }
                inner = rustix::fs::openat(&folder, *part, FOLDER, Mode::empty());
            }
            folder = match inner {
                Ok(inner) => inner,
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    let entry = format!("{} ({})", path.display(), to_text(part));
                    return Err(ArchiveError::Hostile { entry, why: "path leads through a link or a file" });
                }
                Err(errno) => return Err(io_error(path, errno)),
            };
        }
        Ok(folder)
    }
}

/// Creates an entry, replacing an existing one that is not a folder.
fn create_replacing<T>(
    folder: &OwnedFd,
    name: &[u8],
    make: impl Fn() -> Result<T, Errno>,
) -> Result<T, Errno> {
    match make() {
        Err(Errno::EXIST) => match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => make(),
            Err(errno) => Err(errno),
        },
        made => made,
    }
}

fn io_error(path: &InnerPath<'_>, errno: Errno) -> ArchiveError {
    ArchiveError::Io { entry: path.display(), error: errno.into() }
}
