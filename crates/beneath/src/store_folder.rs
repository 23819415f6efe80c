//! Folders of a store that its owner alone may write, by descriptor.

use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::FolderError;
use crate::folder::{NEW_FILE_FLAGS, OPEN_FOLDER_FLAGS, names};
use crate::remove::{RemovalRules, remove_tree};

/// An open folder of a store.
#[derive(Debug)]
pub struct StoreFolder {
    fd: OwnedFd,
    path: PathBuf,
}

impl AsFd for StoreFolder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl StoreFolder {
    /// Opens the store's top folder. Refuses a folder that others can write: its content is trusted once
    /// verified.
    ///
    /// # Errors
    /// Names the operation and the path that failed.
    pub fn open_top(path: &Path) -> Result<Self, FolderError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|error| FolderError::from_io("create the folder", path, &error))?;
        let fd = rustix::fs::openat(CWD, path, OPEN_FOLDER_FLAGS.difference(OFlags::NOFOLLOW), Mode::empty())
            .map_err(|errno| FolderError::io("open the folder", path, errno))?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| FolderError::io("stat", path, errno))?;
        let ours = [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid);
        if !ours || stat.st_mode & 0o022 != 0 {
            return Err(FolderError::WritableByOthers(path.to_owned()));
        }
        let path = path.canonicalize().map_err(|error| FolderError::from_io("resolve", path, &error))?;
        Ok(Self { fd, path })
    }

    /// Opens a subfolder, creating it if it is missing.
    ///
    /// # Errors
    /// Names the operation and the path that failed.
    pub fn open_or_create(&self, name: &str) -> Result<Self, FolderError> {
        match rustix::fs::mkdirat(self, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => self.open(name),
            // On a full or read-only disk, the folder may exist nevertheless.
            Err(errno) => self.open(name).map_err(|_| self.error("create the folder", name, errno)),
        }
    }

    /// Opens an existing subfolder.
    ///
    /// # Errors
    /// Names the operation and the path that failed.
    pub fn open(&self, name: &str) -> Result<Self, FolderError> {
        let fd = rustix::fs::openat(self, name, OPEN_FOLDER_FLAGS, Mode::empty());
        let fd = fd.map_err(|errno| self.error("open the folder", name, errno))?;
        Ok(Self { fd, path: self.path.join(name) })
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the metadata of an entry, or `None` if it does not exist.
    ///
    /// # Errors
    /// Names the operation and the path that failed.
    pub fn stat(&self, name: &str) -> Result<Option<Stat>, FolderError> {
        match rustix::fs::statat(self, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error("stat", name, errno)),
        }
    }

    /// Removes an entry and everything below it; succeeds if it does not exist.
    ///
    /// # Errors
    /// Names the operation and the path that failed.
    pub fn remove_tree(&self, name: &str) -> Result<(), FolderError> {
        remove_tree(self, name, RemovalRules::LEFTOVERS).map_err(|errno| self.error("remove", name, errno))
    }

    /// Removes a file; succeeds if it does not exist.
    ///
    /// # Errors
    /// Names the operation and the path that failed.
    pub fn unlink(&self, name: &str) -> Result<(), FolderError> {
        match rustix::fs::unlinkat(self, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.error("remove", name, errno)),
        }
    }

    /// Returns the names of all entries. Skips names that are not UTF-8: the store creates none.
    ///
    /// # Errors
    /// Names the operation and the path that failed.
    pub fn names(&self) -> Result<Vec<String>, FolderError> {
        let failed = |errno| FolderError::io("list", &self.path, errno);
        let names = names(self.as_fd(), usize::MAX).map_err(failed)?;
        Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    /// Writes a new file and syncs it to disk.
    ///
    /// # Errors
    /// Names the operation and the path that failed.
    pub fn write(&self, name: &str, bytes: &[u8], mode: Mode) -> Result<(), FolderError> {
        let fd = rustix::fs::openat(self, name, NEW_FILE_FLAGS, mode);
        let mut file = File::from(fd.map_err(|errno| self.error("write", name, errno))?);
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        written.map_err(|error| FolderError::from_io("write", self.path.join(name), &error))
    }

    /// Reads a file of at most `limit` bytes; returns `None` if it is missing or larger.
    ///
    /// # Errors
    /// Names the operation and the path that failed.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, FolderError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(self, name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.error("read", name, errno)),
        };
        let mut bytes = Vec::new();
        let read = file.take(limit + 1).read_to_end(&mut bytes);
        read.map_err(|error| FolderError::from_io("read", self.path.join(name), &error))?;
        Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= limit))
    }

    /// Creates an error about an entry of this folder.
    pub fn error(&self, doing: &'static str, name: &str, errno: Errno) -> FolderError {
        FolderError::io(doing, self.path.join(name), errno)
    }
}

/// Returns a random, unpredictable name.
///
/// # Errors
/// Fails if the system has no random numbers.
pub fn random_name() -> Result<String, FolderError> {
    let number = getrandom::u64().map_err(|error| FolderError::System(error.to_string()))?;
    Ok(format!("{number:016x}"))
}
