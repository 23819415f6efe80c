//! Copies files of the host. The copies share no inode, disk block or page cache with the originals.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_beneath::folder::{NEW_FILE_FLAGS, OPEN_FOLDER_FLAGS, names, set_modified};
use belljar_beneath::{OverBudget, UnpackBudget};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawMode, Stat};
use rustix::io::Errno;

use crate::clone::{FOLDER_MODE, MAX_DEPTH};
use crate::error::ImageError;

const CHUNK_BYTES: usize = 256 << 10;
const OTHERS_READ: RawMode = 0o004;
const OTHERS_ENTER: RawMode = 0o005;

/// An entry of the sealed image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SealEntry {
    /// A copy of a folder or file of the host.
    Copy {
        /// Path on the host, without symlinks.
        source: PathBuf,
        /// Absolute path in the image.
        path: String,
    },
    /// A symbolic link.
    Link {
        /// Absolute path in the image.
        path: String,
        /// The link's target.
        target: String,
    },
    /// A small file.
    File {
        /// Absolute path in the image.
        path: String,
        /// The content.
        content: Vec<u8>,
    },
}

/// Copies all entries below a folder; returns the remaining budget. Leaves out files that are not
/// world-readable.
pub(crate) fn copy(
    root: &OwnedFd,
    parts: &[SealEntry],
    budget: UnpackBudget,
) -> Result<UnpackBudget, ImageError> {
    let mut copying = SealCopy { root, budget, limits: budget, links: HashMap::new(), at: PathBuf::new() };
    for part in parts {
        copying.copy_entry(part)?;
    }
    Ok(copying.budget)
}

/// An entry `name` of folder `from`, copied to `new` in folder `to`.
#[derive(Clone, Copy)]
struct CopiedEntry<'a> {
    from: BorrowedFd<'a>,
    name: &'a CStr,
    to: BorrowedFd<'a>,
    new: &'a CStr,
}

struct SealCopy<'a> {
    root: &'a OwnedFd,
    budget: UnpackBudget,
    limits: UnpackBudget,
    /// The first path of each file with several hard links.
    links: HashMap<(i128, u64), PathBuf>,
    /// The current path in the image.
    at: PathBuf,
}

impl SealCopy<'_> {
    fn copy_entry(&mut self, part: &SealEntry) -> Result<(), ImageError> {
        let (SealEntry::Copy { path, .. } | SealEntry::Link { path, .. } | SealEntry::File { path, .. }) =
            part;
        let failed = |errno: Errno| ImageError::io("copy", path, errno);
        let (above, name) = path.rsplit_once('/').ok_or_else(|| failed(Errno::INVAL))?;
        let folder = self.folder(above).map_err(failed)?;
        self.at = Path::new(path.trim_start_matches('/')).to_owned();
        let name = std::ffi::CString::new(name).map_err(|_| failed(Errno::INVAL))?;
        match part {
            SealEntry::Link { target, .. } => rustix::fs::symlinkat(target.as_str(), &folder, &name)
                .or_else(ignore_existing)
                .map_err(failed),
            SealEntry::File { content, .. } => {
                let mut file = new_file(folder.as_fd(), &name, 0o644).map_err(failed)?;
                file.write_all(content).map_err(|error| ImageError::io("copy", path, error))
            }
            SealEntry::Copy { source, .. } => {
                let above = source.parent().unwrap_or(Path::new("/"));
                let from =
                    rustix::fs::openat(CWD, above, OPEN_FOLDER_FLAGS, Mode::empty()).map_err(failed)?;
                let file_name = source.file_name().unwrap_or_default().as_bytes();
                let file_name = std::ffi::CString::new(file_name).map_err(|_| failed(Errno::INVAL))?;
                let copied =
                    CopiedEntry { from: from.as_fd(), name: &file_name, to: folder.as_fd(), new: &name };
                self.entry(copied, 0)
            }
        }
    }

    /// Creates the parent folders of an entry.
    fn folder(&self, path: &str) -> Result<OwnedFd, Errno> {
        let mut folder = rustix::io::dup(self.root)?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            match rustix::fs::mkdirat(&folder, name, FOLDER_MODE) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            folder = rustix::fs::openat(&folder, name, OPEN_FOLDER_FLAGS, Mode::empty())?;
            rustix::fs::fchmod(&folder, FOLDER_MODE)?;
        }
        Ok(folder)
    }

    fn entry(&mut self, copied: CopiedEntry<'_>, depth: usize) -> Result<(), ImageError> {
        let CopiedEntry { from, name, to, new } = copied;
        let failed = |errno: Errno| ImageError::io("copy", &self.at, errno);
        let stat = match rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW) {
            // A host file may disappear meanwhile.
            Err(Errno::NOENT) => return Ok(()),
            stat => stat.map_err(failed)?,
        };
        self.budget.take_entry().map_err(|over| ImageError::over_budget(over, self.limits))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if stat.st_mode & OTHERS_ENTER == OTHERS_ENTER => self.below(copied, depth),
            FileType::RegularFile if stat.st_mode & OTHERS_READ != 0 => self.file(copied, &stat),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new()).map_err(failed)?;
                rustix::fs::symlinkat(&target, to, new).map_err(failed)
            }
            _ => Ok(()),
        }
    }

    fn below(&mut self, folder: CopiedEntry<'_>, depth: usize) -> Result<(), ImageError> {
        let CopiedEntry { from, name, to, new } = folder;
        let failed = |at: &Path, errno: Errno| ImageError::io("copy", at, errno);
        if depth > MAX_DEPTH {
            return Err(failed(&self.at, Errno::NAMETOOLONG));
        }
        let open = |folder, name| rustix::fs::openat(folder, name, OPEN_FOLDER_FLAGS, Mode::empty());
        let inner = open(from, name).map_err(|errno| failed(&self.at, errno))?;
        let made = rustix::fs::mkdirat(to, new, FOLDER_MODE).or_else(ignore_existing);
        let made = made.and_then(|()| open(to, new)).map_err(|errno| failed(&self.at, errno))?;
        rustix::fs::fchmod(&made, FOLDER_MODE).map_err(|errno| failed(&self.at, errno))?;
        let names = names(inner.as_fd(), usize::MAX).map_err(|errno| failed(&self.at, errno))?;
        for name in names {
            self.at.push(std::ffi::OsStr::from_bytes(name.to_bytes()));
            let inside = CopiedEntry { from: inner.as_fd(), name: &name, to: made.as_fd(), new: &name };
            self.entry(inside, depth + 1)?;
            self.at.pop();
        }
        Ok(())
    }

    fn file(&mut self, file: CopiedEntry<'_>, stat: &Stat) -> Result<(), ImageError> {
        let CopiedEntry { from, name, to, new } = file;
        let failed = |errno: Errno| ImageError::io("copy", &self.at, errno);
        let inode = (i128::from(stat.st_dev), stat.st_ino);
        if let Some(first) = self.links.get(&inode) {
            // All folders on this path were just created.
            return rustix::fs::linkat(self.root, first, to, new, AtFlags::empty()).map_err(failed);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut source = match rustix::fs::openat(from, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            opened => File::from(opened.map_err(failed)?),
        };
        let mode = if stat.st_mode & 0o111 == 0 { 0o644 } else { 0o755 };
        let mut copy = new_file(to, new, mode).map_err(failed)?;
        let copied = copy_bytes(&mut source, &mut copy, &mut self.budget);
        let copied = copied.map_err(|error| ImageError::io("copy", &self.at, error))?;
        copied.map_err(|over| ImageError::over_budget(over, self.limits))?;
        set_modified(&copy, stat.st_mtime).map_err(failed)?;
        if stat.st_nlink > 1 {
            self.links.insert(inode, self.at.clone());
        }
        Ok(())
    }
}

/// Copies by read and write: copy_file_range or reflinks could share blocks.
fn copy_bytes(
    from: &mut File,
    to: &mut File,
    budget: &mut UnpackBudget,
) -> std::io::Result<Result<(), OverBudget>> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = from.read(&mut chunk)?;
        if read == 0 {
            return Ok(Ok(()));
        }
        if let Err(over) = budget.take_bytes(read as u64) {
            return Ok(Err(over));
        }
        to.write_all(&chunk[..read])?;
    }
}

fn new_file(folder: BorrowedFd<'_>, name: &CStr, mode: RawMode) -> Result<File, Errno> {
    let file = rustix::fs::openat(folder, name, NEW_FILE_FLAGS, Mode::from_raw_mode(mode))?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    Ok(File::from(file))
}

/// Entries may share a folder.
fn ignore_existing(errno: Errno) -> Result<(), Errno> {
    if errno == Errno::EXIST { Ok(()) } else { Err(errno) }
}
