//! The few things that are done with folders of the shelf, by descriptor.

use std::ffi::CString;
use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::error::ShelfError;

/// A folder itself, and no link to one.
pub const OPEN_FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);
/// A file that was not there.
pub const NEW_FILE: OFlags =
    OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A folder that belongs to the shelf.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Folder {
    /// The shelf's own folder. What others may write is no place for layers: they are trusted once they are verified.
    pub fn top(path: &Path) -> Result<Self, ShelfError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|error| ShelfError::of("make the folder", path, &error))?;
        let fd = rustix::fs::openat(CWD, path, OPEN_FOLDER.difference(OFlags::NOFOLLOW), Mode::empty())
            .map_err(|errno| ShelfError::io("open the folder", path, errno))?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| ShelfError::io("look at", path, errno))?;
        let ours = [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid);
        if !ours || stat.st_mode & 0o022 != 0 {
            return Err(ShelfError::Exposed { path: path.to_owned() });
        }
        let path = path.canonicalize().map_err(|error| ShelfError::of("find", path, &error))?;
        Ok(Self { fd, path })
    }

    /// A folder in it, made where it is missing.
    pub fn child(&self, name: &str) -> Result<Self, ShelfError> {
        match rustix::fs::mkdirat(self, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => self.open(name),
            // A folder on a disk that is full or read-only may be there all the same.
            Err(errno) => self.open(name).map_err(|_| self.failed("make the folder", name, errno)),
        }
    }

    /// A folder in it that is there.
    pub fn open(&self, name: &str) -> Result<Self, ShelfError> {
        let fd = rustix::fs::openat(self, name, OPEN_FOLDER, Mode::empty());
        let fd = fd.map_err(|errno| self.failed("open the folder", name, errno))?;
        Ok(Self { fd, path: self.path.join(name) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is there under a name, if anything.
    pub fn stat(&self, name: &str) -> Result<Option<Stat>, ShelfError> {
        match rustix::fs::statat(self, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed("look at", name, errno)),
        }
    }

    /// Takes a name away; none is as good.
    pub fn unlink(&self, name: &str) -> Result<(), ShelfError> {
        match rustix::fs::unlinkat(self, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.failed("remove", name, errno)),
        }
    }

    /// The names in it that are text; there are no others but by somebody else's hand.
    pub fn names(&self) -> Result<Vec<String>, ShelfError> {
        let failed = |errno| ShelfError::io("list", &self.path, errno);
        let names = names(self.as_fd(), usize::MAX).map_err(failed)?;
        Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    /// A new file, written to the disk.
    pub fn write(&self, name: &str, bytes: &[u8], mode: Mode) -> Result<(), ShelfError> {
        let fd = rustix::fs::openat(self, name, NEW_FILE, mode);
        let mut file = File::from(fd.map_err(|errno| self.failed("write", name, errno))?);
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        written.map_err(|error| ShelfError::of("write", self.path.join(name), &error))
    }

    /// A file of at most so many bytes; `None` where there is no such file.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, ShelfError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(self, name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.failed("read", name, errno)),
        };
        let mut bytes = Vec::new();
        let read = file.take(limit + 1).read_to_end(&mut bytes);
        read.map_err(|error| ShelfError::of("read", self.path.join(name), &error))?;
        Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= limit))
    }

    /// What the system said about something in it.
    pub fn failed(&self, doing: &'static str, name: &str, errno: Errno) -> ShelfError {
        ShelfError::io(doing, self.path.join(name), errno)
    }
}

/// The names in a folder, but not more than so many and one.
pub fn names(folder: BorrowedFd<'_>, most: usize) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
        if names.len() > most {
            break;
        }
    }
    Ok(names)
}

/// A name that nobody has and nobody guesses.
pub fn random_name() -> Result<String, ShelfError> {
    let number = getrandom::u64().map_err(|error| ShelfError::System(error.to_string()))?;
    Ok(format!("{number:016x}"))
}
