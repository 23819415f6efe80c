//! Unpacks a layer over a root. The archive is untrusted: the kernel resolves every path inside the root,
//! whatever links it contains, and every file is a new one.
//!
//! - Owners, set-id bits, extended attributes and devices are dropped: all files belong to the unpacking user
//!   and are readable.
//! - A whiteout removes entries of lower layers, but none of its own layer.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_beneath::folder::{NEW_FILE_FLAGS, OPEN_FOLDER_FLAGS, names, set_modified};
use belljar_beneath::{InnerPath, RemovalRules, UnpackBudget, remove_tree};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use crate::clone::{FOLDER_MODE, MAX_DEPTH};
use crate::error::ImageError;

const FILE_MODE: Mode = Mode::from_raw_mode(0o644);
const PROGRAM_MODE: Mode = Mode::from_raw_mode(0o755);
const MAX_FILE_NAME_BYTES: usize = 255;
const MAX_LINK_TARGET_BYTES: usize = 4_095;
const WHITEOUT_PREFIX: &[u8] = b".wh.";
const OPAQUE_WHITEOUT: &[u8] = b".wh..wh..opq";

/// Unpacks a checked archive over a root; returns the remaining budget.
pub(crate) fn unpack(
    root: &OwnedFd,
    archive: &mut File,
    budget: UnpackBudget,
) -> Result<UnpackBudget, ImageError> {
    let mut unpacking = LayerUnpacker { root, budget, limits: budget, own_paths: BTreeSet::new() };
    let mut archive = Archive::new(archive);
    for entry in archive.entries().map_err(unreadable)? {
        unpacking.entry(entry.map_err(unreadable)?)?;
    }
    Ok(unpacking.budget)
}

fn unreadable(error: io::Error) -> ImageError {
    ImageError::refused(format!("cannot read a layer ({error})"))
}

struct LayerUnpacker<'a> {
    root: &'a OwnedFd,
    budget: UnpackBudget,
    limits: UnpackBudget,
    /// Paths created by this layer.
    own_paths: BTreeSet<PathBuf>,
}

impl LayerUnpacker<'_> {
    fn entry(&mut self, mut entry: Entry<'_, impl Read>) -> Result<(), ImageError> {
        let raw = entry.path_bytes().into_owned();
        let path = normalize_path(&raw)?;
        // The entry is the root itself.
        let Some(name) = path.file_name().map(OsStr::to_owned) else { return Ok(()) };
        self.budget.take_entry().map_err(|over| ImageError::over_budget(over, self.limits))?;
        let above = path.parent().unwrap_or(Path::new(""));
        let failed = |errno: Errno| failed(&path, errno);
        if name.as_bytes() == OPAQUE_WHITEOUT {
            return self.remove_all_lower(above).map_err(failed);
        }
        if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT_PREFIX) {
            return self.remove_lower(above, OsStr::from_bytes(hidden)).map_err(failed);
        }
        let kind = entry.header().entry_type();
        if !matches!(
            kind,
            EntryType::Directory
                | EntryType::Regular
                | EntryType::Continuous
                | EntryType::GNUSparse
                | EntryType::Symlink
                | EntryType::Link
        ) {
            // Skips devices, pipes and unknown types.
            return Ok(());
        }
        let folder = self.folder(above).map_err(failed)?;
        match kind {
            EntryType::Directory => make_folder(&folder, &name).map_err(failed)?,
            EntryType::Symlink => {
                let target = target(&entry, &path)?;
                remove_existing(&folder, &name).map_err(failed)?;
                rustix::fs::symlinkat(&*target, &folder, &*name).map_err(failed)?;
            }
            EntryType::Link => self.link(&target(&entry, &path)?, &folder, &name).map_err(failed)?,
            _ => self.file(&mut entry, &folder, &name, &path)?,
        }
        self.own_paths.insert(path);
        Ok(())
    }

    fn file(
        &mut self,
        entry: &mut Entry<'_, impl Read>,
        folder: &OwnedFd,
        name: &OsStr,
        path: &Path,
    ) -> Result<(), ImageError> {
        let failed = |errno: Errno| failed(path, errno);
        let counted = self.budget.take_bytes(entry.size());
        counted.map_err(|over| ImageError::over_budget(over, self.limits))?;
        remove_existing(folder, name).map_err(failed)?;
        let runs = entry.header().mode().unwrap_or(0) & 0o111 != 0;
        let file = rustix::fs::openat(folder, name, NEW_FILE_FLAGS, FILE_MODE).map_err(failed)?;
        let mut file = File::from(file);
        io::copy(entry, &mut file).map_err(|error| ImageError::io("unpack", path, error))?;
        // Explicit, because the umask applies to new files.
        rustix::fs::fchmod(&file, if runs { PROGRAM_MODE } else { FILE_MODE }).map_err(failed)?;
        let modified = entry.header().mtime().ok().and_then(|time| i64::try_from(time).ok()).unwrap_or(0);
        set_modified(&file, modified).map_err(failed)
    }

    /// Creates a hard link to an earlier file. The target is resolved like any other path.
    fn link(&self, target: &[u8], folder: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
        let target = normalize_path(target).map_err(|_| Errno::XDEV)?;
        let (Some(above), Some(file)) = (target.parent(), target.file_name()) else {
            return Err(Errno::ISDIR);
        };
        let from = open_in(self.root, above)?;
        let (source, existing) = (stat(&from, file)?.ok_or(Errno::NOENT)?, stat(folder, name)?);
        if existing
            .is_some_and(|existing| (existing.st_dev, existing.st_ino) == (source.st_dev, source.st_ino))
        {
            return Ok(());
        }
        remove_existing(folder, name)?;
        rustix::fs::linkat(&from, file, folder, name, AtFlags::empty())
    }

    /// Opens a folder of the root, creating it if it is missing.
    fn folder(&self, path: &Path) -> Result<OwnedFd, Errno> {
        match open_in(self.root, path) {
            Err(Errno::NOENT) => {}
            found => return found,
        }
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::NOENT) };
        let above = self.folder(above)?;
        make_folder(&above, name)?;
        rustix::fs::openat(&above, name, OPEN_FOLDER_FLAGS, Mode::empty())
    }

    /// Removes an entry of lower layers.
    fn remove_lower(&self, above: &Path, name: &OsStr) -> Result<(), Errno> {
        if matches!(name.as_bytes(), b"" | b"." | b"..") {
            return Err(Errno::INVAL);
        }
        match open_in(self.root, above) {
            Ok(folder) => self.remove_except_own(folder.as_fd(), above, name, 0),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Removes all entries of lower layers from a folder.
    fn remove_all_lower(&self, path: &Path) -> Result<(), Errno> {
        match open_in(self.root, path) {
            Ok(folder) => self.remove_all_except_own(folder.as_fd(), path, 0),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn remove_all_except_own(&self, folder: BorrowedFd<'_>, path: &Path, depth: usize) -> Result<(), Errno> {
        for name in names(folder, usize::MAX)? {
            self.remove_except_own(folder, path, OsStr::from_bytes(name.to_bytes()), depth)?;
        }
        Ok(())
    }

    /// Removes an entry with everything below it, except for paths created by this layer.
    fn remove_except_own(
        &self,
        folder: BorrowedFd<'_>,
        above: &Path,
        name: &OsStr,
        depth: usize,
    ) -> Result<(), Errno> {
        if depth > MAX_DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        let path = above.join(name);
        let brought = self.own_paths.range(path.clone()..).next().is_some_and(|next| next.starts_with(&path));
        if !brought {
            return remove_tree(folder, name, RemovalRules::LEFTOVERS);
        }
        match rustix::fs::openat(folder, name, OPEN_FOLDER_FLAGS, Mode::empty()) {
            Ok(inner) => self.remove_all_except_own(inner.as_fd(), &path, depth + 1),
            Err(Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// Normalizes a path relative to the root; refuses `..`.
fn normalize_path(name: &[u8]) -> Result<PathBuf, ImageError> {
    let bad = |why: &str| {
        let shown: String = String::from_utf8_lossy(name).chars().take(200).collect();
        ImageError::refused(format!("'{}': {why}", shown.escape_debug()))
    };
    let relative = name.iter().position(|byte| *byte != b'/').map_or(&[][..], |start| &name[start..]);
    let Some(path) = InnerPath::parse(relative, MAX_DEPTH).map_err(bad)? else { return Ok(PathBuf::new()) };
    if path.parts().iter().any(|name| name.len() > MAX_FILE_NAME_BYTES) {
        return Err(bad("invalid file name"));
    }
    Ok(path.parts().iter().map(|name| OsStr::from_bytes(name)).collect())
}

fn target<R: Read>(entry: &Entry<'_, R>, path: &Path) -> Result<Vec<u8>, ImageError> {
    let target = entry.link_name_bytes().map(|target| target.into_owned()).unwrap_or_default();
    match target.is_empty() || target.len() > MAX_LINK_TARGET_BYTES || target.contains(&0) {
        true => Err(failed(path, Errno::INVAL)),
        false => Ok(target),
    }
}

fn failed(path: &Path, errno: Errno) -> ImageError {
    let shown: String = path.display().to_string().chars().take(200).collect();
    let why = match errno {
        Errno::NOENT => "its link target does not exist".to_owned(),
        Errno::NOTDIR | Errno::LOOP => "its parent is not a folder".to_owned(),
        Errno::NOSPC | Errno::DQUOT => return ImageError::NoSpace(path.to_owned()),
        errno => std::io::Error::from(errno).to_string(),
    };
    ImageError::refused(format!("'{}': {why}", shown.escape_debug()))
}

/// Opens a folder below the root. The kernel resolves links as if the root were '/', and never leaves it.
#[cfg(target_os = "linux")]
fn open_in(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    use rustix::fs::ResolveFlags;

    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

#[cfg(not(target_os = "linux"))]
fn open_in(_root: &OwnedFd, _path: &Path) -> Result<OwnedFd, Errno> {
    let _ = OFlags::RDONLY;
    Err(Errno::NOSYS)
}

fn stat(folder: &OwnedFd, name: &OsStr) -> Result<Option<rustix::fs::Stat>, Errno> {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Creates a folder. Keeps an existing one, and replaces anything else.
fn make_folder(folder: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    match stat(folder, name)? {
        Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => return Ok(()),
        Some(_) => rustix::fs::unlinkat(folder, name, AtFlags::empty())?,
        None => {}
    }
    rustix::fs::mkdirat(folder, name, FOLDER_MODE)?;
    let made = rustix::fs::openat(folder, name, OPEN_FOLDER_FLAGS, Mode::empty())?;
    rustix::fs::fchmod(&made, FOLDER_MODE)
}

/// Removes an existing entry: a file may be shared with other images and must never be written.
fn remove_existing(folder: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    remove_tree(folder, name, RemovalRules::LEFTOVERS)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
#[path = "unpack_tests.rs"]
mod tests;
