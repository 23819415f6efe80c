//! Writes the entries of an archive into a folder, and counts all output.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use belljar_beneath::folder::set_modified;
use belljar_beneath::{InnerPath, OverBudget, TargetError, UnpackBudget, UnpackMode, UnpackTarget};
use rustix::fs::Mode;

use super::ArchiveError;
use crate::flow_control::CHUNK_BYTES;
use crate::protocol::{ArchiveLimits, UnpackSummary};

/// Output that is always allowed regardless of the compression ratio: small archives compress well.
const RATIO_EXEMPT_BYTES: u64 = 1 << 20;

/// The attributes of a file, according to the archive.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EntryAttributes {
    pub(super) mode: Option<u32>,
    pub(super) modified: Option<i64>,
}

/// The target folder, and what may still be unpacked.
#[derive(Debug)]
pub(super) struct EntryWriter {
    target: UnpackTarget,
    limits: ArchiveLimits,
    budget: UnpackBudget,
}

impl EntryWriter {
    pub(super) fn open(path: &Path, limits: ArchiveLimits) -> Result<Self, ArchiveError> {
        let target = UnpackTarget::open(path, UnpackMode::Merge)
            .map_err(|errno| ArchiveError::Io { entry: path.display().to_string(), error: errno.into() })?;
        let budget = UnpackBudget { bytes: limits.bytes, entries: limits.entries };
        Ok(Self { target, limits, budget })
    }

    pub(super) fn unpacked(&self) -> UnpackSummary {
        UnpackSummary {
            entries: self.limits.entries - self.budget.entries,
            bytes: self.limits.bytes - self.budget.bytes,
        }
    }

    /// Counts one more entry.
    pub(super) fn count_entry(&mut self) -> Result<(), ArchiveError> {
        self.budget.take_entry().map_err(over_budget)
    }

    pub(super) fn folder(
        &mut self,
        path: &InnerPath<'_>,
        about: EntryAttributes,
    ) -> Result<(), ArchiveError> {
        let folder = self.target.create_folder(path).map_err(|error| target_error(path, error))?;
        if let Some(mode) = about.mode {
            // The unpacking user must be able to write to the folder.
            let mode = Mode::from_raw_mode((mode & 0o777) | 0o700);
            rustix::fs::fchmod(&folder, mode).map_err(|errno| target_error(path, errno.into()))?;
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
        let mode = Mode::from_raw_mode(about.mode.map_or(0o644, |mode| mode & 0o777));
        let mut file = self.target.create_file(path, mode).map_err(|error| target_error(path, error))?;
        self.copy(path, content, &mut file, packed)?;
        if let Some(modified) = about.modified {
            // The file system may not support this time; that is no reason to fail.
            let _best_effort = set_modified(&file, modified);
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
            self.budget.take_bytes(len as u64).map_err(over_budget)?;
            let allowed = packed().saturating_mul(self.limits.ratio.into()).max(RATIO_EXEMPT_BYTES);
            if self.unpacked().bytes > allowed {
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
        self.target.create_link(path, target).map_err(|error| target_error(path, error))
    }

    /// Creates a hard link to an entry that was unpacked before.
    pub(super) fn hard_link(
        &mut self,
        path: &InnerPath<'_>,
        target: &InnerPath<'_>,
    ) -> Result<(), ArchiveError> {
        self.target.create_hard_link(path, target).map_err(|error| target_error(path, error))
    }
}

fn over_budget(excess: OverBudget) -> ArchiveError {
    ArchiveError::TooLarge(match excess {
        OverBudget::Entries => "the archive has too many entries",
        OverBudget::Bytes => "the unpacked content is too large",
    })
}

fn target_error(path: &InnerPath<'_>, error: TargetError) -> ArchiveError {
    match error {
        TargetError::Blocked(part) => {
            let entry = format!("{} ({})", path.display(), String::from_utf8_lossy(&part));
            ArchiveError::Hostile { entry, why: TargetError::BLOCKED }
        }
        TargetError::Io(errno) => ArchiveError::Io { entry: path.display(), error: errno.into() },
    }
}
