//! Walks a folder to pack it. Follows no link; visits only files, folders and links.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{ArchiveError, PackScope, to_text};

/// Maximum nesting depth; each level has one open descriptor.
const MAX_PACK_DEPTH: usize = 128;
/// Maximum number of entries: a zip writer keeps a list of all of them.
const MAX_PACK_ENTRIES: usize = 200_000;

const OPEN_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// The content of an entry.
pub(super) enum PackNode {
    Folder,
    File(File, u64),
    Link(Vec<u8>),
}

/// An entry of the folder.
pub(super) struct PackEntry {
    /// Path relative to the folder, without a trailing slash.
    pub(super) path: Vec<u8>,
    pub(super) mode: u32,
    pub(super) modified: u64,
    pub(super) node: PackNode,
}

/// A callback that receives entries.
pub(super) type PackVisitor<'a> = dyn FnMut(PackEntry) -> io::Result<()> + 'a;

/// Visits all entries of a folder, each folder before its content.
pub(super) fn walk(path: &Path, reach: PackScope, take: &mut PackVisitor<'_>) -> Result<(), ArchiveError> {
    let flags = OPEN_FLAGS.difference(OFlags::NOFOLLOW) | OFlags::DIRECTORY;
    let failed = |errno: Errno| ArchiveError::Io { entry: path.display().to_string(), error: errno.into() };
    let root = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
    let disk = match reach {
        PackScope::All => None,
        PackScope::OneFileSystem => Some(rustix::fs::fstat(&root).map_err(failed)?.st_dev),
    };
    let mut walk = PackWalk { visit: take, disk, entries: 0 };
    walk.folder(root, &mut Vec::new(), 0)
}

struct PackWalk<'a, 'b> {
    visit: &'a mut PackVisitor<'b>,
    /// If set, only entries of this device are visited.
    disk: Option<u64>,
    entries: usize,
}

impl PackWalk<'_, '_> {
    fn folder(&mut self, folder: OwnedFd, path: &mut Vec<u8>, depth: usize) -> Result<(), ArchiveError> {
        if depth > MAX_PACK_DEPTH {
            return Err(ArchiveError::TooLarge("folders are nested too deeply"));
        }
        let io = |path: &[u8], errno: Errno| ArchiveError::Io { entry: to_text(path), error: errno.into() };
        let mut entries = Dir::read_from(&folder).map_err(|errno| io(path, errno))?;
        let len = path.len();
        while let Some(entry) = entries.read() {
            let name: CString = entry.map_err(|errno| io(path, errno))?.file_name().to_owned();
            if name.as_c_str() == c"." || name.as_c_str() == c".." {
                continue;
            }
            path.truncate(len);
            if len > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            match self.entry(&folder, &name, path, depth) {
                // Skips entries that were removed meanwhile or are not readable.
                Err(ArchiveError::Io { error, .. })
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
                other => other?,
            }
        }
        path.truncate(len);
        Ok(())
    }

    fn entry(
        &mut self,
        folder: &OwnedFd,
        name: &CString,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> Result<(), ArchiveError> {
        let io = |errno: Errno| ArchiveError::Io { entry: to_text(path), error: errno.into() };
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io)?;
        if self.disk.is_some_and(|disk| disk != stat.st_dev) {
            return Ok(());
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        let node = match kind {
            FileType::Symlink => {
                PackNode::Link(rustix::fs::readlinkat(folder, name, Vec::new()).map_err(io)?.into_bytes())
            }
            FileType::Directory => PackNode::Folder,
            FileType::RegularFile => {
                let file = rustix::fs::openat(folder, name, OPEN_FLAGS, Mode::empty()).map_err(io)?;
                // The path may have been swapped; only the opened file counts.
                let stat = rustix::fs::fstat(&file).map_err(io)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Ok(());
                }
                PackNode::File(File::from(file), u64::try_from(stat.st_size).unwrap_or(0))
            }
            _ => return Ok(()),
        };
        let below = match &node {
            PackNode::Folder => Some(
                rustix::fs::openat(folder, name, OPEN_FLAGS | OFlags::DIRECTORY, Mode::empty())
                    .map_err(io)?,
            ),
            _ => None,
        };
        self.entries += 1;
        if self.entries > MAX_PACK_ENTRIES {
            return Err(ArchiveError::TooLarge("the folder has too many entries"));
        }
        (self.visit)(pack_entry(path, &stat, node)).map_err(ArchiveError::Archive)?;
        match below {
            Some(below) => self.folder(below, path, depth + 1),
            None => Ok(()),
        }
    }
}

fn pack_entry(path: &[u8], stat: &Stat, node: PackNode) -> PackEntry {
    PackEntry {
        path: path.to_vec(),
        mode: stat.st_mode & 0o777,
        modified: u64::try_from(stat.st_mtime).unwrap_or(0),
        node,
    }
}
