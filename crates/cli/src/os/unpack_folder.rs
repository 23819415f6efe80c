//! A target folder for untrusted files, with the permissions of an archive.

use std::fs::File;
use std::io;
use std::path::Path;

use belljar_beneath::{InnerPath, UnpackMode, UnpackTarget};
use rustix::fs::{Mode, fchmod};

/// Maximum number of folders whose permissions can be set only after their content is written.
const MAX_PENDING_MODES: usize = 10_000;

#[derive(Debug)]
pub(crate) struct UnpackFolder {
    target: UnpackTarget,
    /// Folders that their owner may not write to, and their final permissions.
    pending_modes: Vec<(Vec<u8>, u32)>,
}

impl UnpackFolder {
    /// Opens the folder. The user chose it, so symbolic links on the path to it are followed.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { target: UnpackTarget::open(path, UnpackMode::Merge)?, pending_modes: Vec::new() })
    }

    /// Creates a folder if it is missing, and sets its permissions.
    pub(crate) fn create_folder(&mut self, path: &InnerPath<'_>, mode: u32) -> io::Result<()> {
        let folder = self.target.create_folder(path)?;
        if mode & 0o300 != 0o300 {
            if self.pending_modes.len() == MAX_PENDING_MODES {
                return Err(io::Error::other("too many read-only folders"));
            }
            self.pending_modes.push((path.parts().join(&b'/'), mode));
        }
        Ok(fchmod(&folder, Mode::from_raw_mode((mode & 0o777 | 0o700) as _))?)
    }

    /// Creates a file in place of anything with its name. Only its owner may open it until
    /// [`UnpackFolder::set_permissions`] is called.
    pub(crate) fn create_file(&self, path: &InnerPath<'_>) -> io::Result<File> {
        Ok(self.target.create_file(path, Mode::RUSR | Mode::WUSR)?)
    }

    /// Sets a file's permissions, without setuid, setgid and sticky.
    pub(crate) fn set_permissions(file: &File, mode: u32) -> io::Result<()> {
        Ok(fchmod(file, Mode::from_raw_mode((mode & 0o777) as _))?)
    }

    /// Creates a symbolic link in place of anything with its name.
    pub(crate) fn create_link(&self, path: &InnerPath<'_>, target: &[u8]) -> io::Result<()> {
        Ok(self.target.create_link(path, target)?)
    }

    /// Sets the permissions that could not be set before all content was written.
    pub(crate) fn apply_pending_modes(self) -> io::Result<()> {
        // A folder comes before its content in an archive, and its content must stay reachable through it.
        for (path, mode) in self.pending_modes.iter().rev() {
            let path = InnerPath::parse(path, usize::MAX).map_err(io::Error::other)?;
            let Some(path) = path else { continue };
            fchmod(self.target.create_folder(&path)?, Mode::from_raw_mode((mode & 0o777) as _))?;
        }
        Ok(())
    }
}
