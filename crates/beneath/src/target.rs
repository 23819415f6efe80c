//! The folder into which an archive is unpacked. Every name is looked up in an open folder, and no link is
//! followed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::folder::{NEW_FILE_FLAGS, OPEN_FOLDER_FLAGS};
use crate::path::InnerPath;

/// How entries relate to those that exist already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnpackMode {
    /// Creates missing parent folders, and replaces existing entries that are no folders.
    Merge,
    /// Creates every entry anew below folders that earlier entries created: the folder was empty, and an
    /// archive with duplicates is malformed.
    Exact,
}

/// Why an entry could not be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetError {
    /// This part of the path is no folder.
    Blocked(Vec<u8>),
    /// An error of the system.
    Io(Errno),
}

impl TargetError {
    /// The reason in [`TargetError::Blocked`].
    pub const BLOCKED: &str = "path leads through a symbolic link or a file";
}

impl From<Errno> for TargetError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno)
    }
}

impl From<TargetError> for io::Error {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Blocked(_) => Self::other(TargetError::BLOCKED),
            TargetError::Io(errno) => errno.into(),
        }
    }
}

/// The folder into which an archive is unpacked.
#[derive(Debug)]
pub struct UnpackTarget {
    root: OwnedFd,
    mode: UnpackMode,
}

impl UnpackTarget {
    /// Unpacks into an open folder.
    pub fn new(root: OwnedFd, mode: UnpackMode) -> Self {
        Self { root, mode }
    }

    /// Opens a folder. The caller chose it, so symbolic links on the path to it are followed.
    ///
    /// # Errors
    /// Fails if it cannot be opened.
    pub fn open(path: &Path, mode: UnpackMode) -> Result<Self, Errno> {
        let flags = OPEN_FOLDER_FLAGS.difference(OFlags::NOFOLLOW);
        Ok(Self::new(rustix::fs::openat(CWD, path, flags, Mode::empty())?, mode))
    }

    /// Creates and opens a folder. With [`UnpackMode::Merge`], opens an existing one.
    ///
    /// # Errors
    /// Says why it could not be created.
    pub fn create_folder(&self, path: &InnerPath<'_>) -> Result<OwnedFd, TargetError> {
        if self.mode == UnpackMode::Exact {
            let (folder, name) = self.open_parent(path)?;
            rustix::fs::mkdirat(&folder, name, Mode::RWXU)?;
        }
        self.open_folders(path.parts())
    }

    /// Creates a file. The mode is subject to the umask.
    ///
    /// # Errors
    /// Says why it could not be created.
    pub fn create_file(&self, path: &InnerPath<'_>, mode: Mode) -> Result<File, TargetError> {
        let (folder, name) = self.open_parent(path)?;
        let make = || rustix::fs::openat(&folder, name, NEW_FILE_FLAGS, mode);
        Ok(File::from(self.create(&folder, name, make)?))
    }

    /// Creates a symlink with any target.
    ///
    /// # Errors
    /// Says why it could not be created.
    pub fn create_link(&self, path: &InnerPath<'_>, target: &[u8]) -> Result<(), TargetError> {
        let (folder, name) = self.open_parent(path)?;
        self.create(&folder, name, || rustix::fs::symlinkat(target, &folder, name))
    }

    /// Creates a hard link to an entry that was unpacked before. A hard link to a symlink is that symlink.
    ///
    /// # Errors
    /// Says why it could not be created.
    pub fn create_hard_link(&self, path: &InnerPath<'_>, target: &InnerPath<'_>) -> Result<(), TargetError> {
        let (from, from_name) = self.open_parent(target)?;
        let (folder, name) = self.open_parent(path)?;
        // Without AT_SYMLINK_FOLLOW, no link is followed.
        let make = || rustix::fs::linkat(&from, from_name, &folder, name, AtFlags::empty());
        self.create(&folder, name, make)
    }

    fn open_parent<'a>(&self, path: &InnerPath<'a>) -> Result<(OwnedFd, &'a [u8]), TargetError> {
        let (folders, name) = path.split();
        Ok((self.open_folders(folders)?, name))
    }

    /// Opens nested folders below the root one by one.
    fn open_folders(&self, parts: &[&[u8]]) -> Result<OwnedFd, TargetError> {
        let mut folder = rustix::io::fcntl_dupfd_cloexec(&self.root, 0)?;
        for part in parts {
            let mut inner = rustix::fs::openat(&folder, *part, OPEN_FOLDER_FLAGS, Mode::empty());
            if self.mode == UnpackMode::Merge && matches!(inner, Err(Errno::NOENT)) {
                match rustix::fs::mkdirat(&folder, *part, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
                inner = rustix::fs::openat(&folder, *part, OPEN_FOLDER_FLAGS, Mode::empty());
            }
            folder = match inner {
                Ok(inner) => inner,
                Err(Errno::LOOP | Errno::NOTDIR | Errno::MLINK) => {
                    return Err(TargetError::Blocked(part.to_vec()));
                }
                Err(errno) => return Err(errno.into()),
            };
        }
        Ok(folder)
    }

    fn create<T>(
        &self,
        folder: &OwnedFd,
        name: &[u8],
        make: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, TargetError> {
        match make() {
            Err(Errno::EXIST) if self.mode == UnpackMode::Merge => {
                match rustix::fs::unlinkat(folder.as_fd(), name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => Ok(make()?),
                    Err(errno) => Err(errno.into()),
                }
            }
            made => Ok(made?),
        }
    }
}

/// The remaining budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnpackBudget {
    /// Bytes of content.
    pub bytes: u64,
    /// Number of files, folders and links.
    pub entries: u64,
}

/// The part of a budget that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverBudget {
    /// Bytes of content.
    Bytes,
    /// Number of entries.
    Entries,
}

impl UnpackBudget {
    /// Counts one more entry.
    ///
    /// # Errors
    /// Fails if none is left.
    pub fn take_entry(&mut self) -> Result<(), OverBudget> {
        self.entries = self.entries.checked_sub(1).ok_or(OverBudget::Entries)?;
        Ok(())
    }

    /// Counts bytes of content.
    ///
    /// # Errors
    /// Fails if fewer are left.
    pub fn take_bytes(&mut self, bytes: u64) -> Result<(), OverBudget> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(OverBudget::Bytes)?;
        Ok(())
    }
}
