//! Walks the entries of a layer by descriptor. Follows no link and enters no other file system: a stage was
//! filled by a program that unpacked untrusted archives.
//!
//! One walk seals and hashes what an installer left. The same walk verifies a layer at its first use after a
//! start, and on demand.

use std::ffi::CStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_beneath::folder::{OPEN_FOLDER_FLAGS, names};
use belljar_beneath::link_stays_inside;
use belljar_beneath::{ContentDigest, Hasher};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::error::LayerStoreError;

/// Maximum number of files, folders and links of one layer.
pub(super) const MAX_ENTRIES: u64 = 500_000;
/// Maximum nesting depth of folders.
pub(super) const MAX_DEPTH: usize = 64;
/// Maximum length of a path from the top of the layer, and of a link's target, in bytes.
pub(super) const MAX_PATH_BYTES: usize = 2_048;
const CHUNK_BYTES: usize = 256 << 10;
/// Extended attributes that grant rights which the mode does not show.
const PRIVILEGE_XATTRS: [&[u8]; 3] =
    [b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default"];

/// How modes are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModePolicy {
    /// Make them read-only.
    Seal,
    /// Require them to be as published.
    Check,
}

/// An entry of a layer.
pub(super) struct LayerEntry<'a> {
    /// Path from the top of the layer.
    pub(super) path: &'a [u8],
    pub(super) node: LayerNode<'a>,
}

pub(super) enum LayerNode<'a> {
    Folder,
    File { file: &'a File, executable: bool, size: u64, modified: i64 },
    Link { target: &'a [u8] },
}

type Visit<'a> = dyn FnMut(&LayerEntry<'_>) -> Result<(), LayerStoreError> + 'a;

/// Visits everything below a folder in order of names, each folder before its content.
pub(super) fn walk(
    top: OwnedFd,
    pass: ModePolicy,
    bytes: u64,
    visit: &mut Visit<'_>,
) -> Result<(), LayerStoreError> {
    let stat = rustix::fs::fstat(&top).map_err(|errno| LayerStoreError::io("stat", ".", errno))?;
    let device = i128::from(stat.st_dev);
    let mut walk =
        LayerWalk { pass, device, entries: MAX_ENTRIES, bytes, limit: bytes, depth: 0, path: Vec::new() };
    walk.check_stat(&stat)?;
    walk.check_xattrs(top.as_fd())?;
    walk.seal_or_check_mode(top.as_fd(), &stat, SEALED_FOLDER)?;
    walk.folder(top.as_fd(), visit)
}

/// The state and remaining budget of a walk.
struct LayerWalk {
    pass: ModePolicy,
    /// Wide enough for `dev_t` of every system.
    device: i128,
    entries: u64,
    bytes: u64,
    limit: u64,
    depth: usize,
    path: Vec<u8>,
}

const SEALED_FOLDER: u32 = 0o555;
const SEALED_PROGRAM: u32 = 0o555;
const SEALED_FILE: u32 = 0o444;

impl LayerWalk {
    fn folder(&mut self, folder: BorrowedFd<'_>, visit: &mut Visit<'_>) -> Result<(), LayerStoreError> {
        let most = usize::try_from(self.entries).unwrap_or(usize::MAX);
        let mut names = names(folder, most).map_err(|errno| self.unreadable(errno))?;
        names.sort();
        for name in names {
            let above = self.path.len();
            if above > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name.to_bytes());
            self.entry(folder, &name, visit)?;
            self.path.truncate(above);
        }
        Ok(())
    }

    fn entry(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &CStr,
        visit: &mut Visit<'_>,
    ) -> Result<(), LayerStoreError> {
        let too_large = |what, limit| LayerStoreError::TooLarge { what, limit };
        self.entries = self.entries.checked_sub(1).ok_or(too_large("entries", MAX_ENTRIES))?;
        if self.path.len() > MAX_PATH_BYTES {
            return Err(too_large("bytes in a path", MAX_PATH_BYTES as u64));
        }
        // Checked before it is opened: opening a device can have effects.
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(|errno| self.unreadable(errno))?;
        self.check_stat(&stat)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.subfolder(folder, name, visit),
            FileType::RegularFile => self.file(folder, name, visit),
            FileType::Symlink => self.link(folder, name, visit),
            _ => Err(self.not_allowed("only files, folders and links are allowed")),
        }
    }

    fn subfolder(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &CStr,
        visit: &mut Visit<'_>,
    ) -> Result<(), LayerStoreError> {
        if self.depth == MAX_DEPTH {
            return Err(LayerStoreError::TooLarge { what: "nested folders", limit: MAX_DEPTH as u64 });
        }
        let (inner, stat) = self.open(folder, name, OPEN_FOLDER_FLAGS)?;
        self.seal_or_check_mode(inner.as_fd(), &stat, SEALED_FOLDER)?;
        visit(&LayerEntry { path: &self.path, node: LayerNode::Folder })?;
        self.depth += 1;
        self.folder(inner.as_fd(), visit)?;
        self.depth -= 1;
        Ok(())
    }

    fn file(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &CStr,
        visit: &mut Visit<'_>,
    ) -> Result<(), LayerStoreError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let (file, stat) = self.open(folder, name, flags)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.not_allowed("it changed during inspection"));
        }
        // The file could be written later by another name outside the layer.
        if stat.st_nlink != 1 {
            return Err(self.not_allowed("it has several hard links"));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        let left = self.bytes.checked_sub(size);
        self.bytes = left.ok_or(LayerStoreError::TooLarge { what: "bytes", limit: self.limit })?;
        let executable = stat.st_mode & 0o100 != 0;
        self.seal_or_check_mode(file.as_fd(), &stat, if executable { SEALED_PROGRAM } else { SEALED_FILE })?;
        let node = LayerNode::File { file: &File::from(file), executable, size, modified: stat.st_mtime };
        visit(&LayerEntry { path: &self.path, node })
    }

    fn link(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &CStr,
        visit: &mut Visit<'_>,
    ) -> Result<(), LayerStoreError> {
        let target = rustix::fs::readlinkat(folder, name, Vec::new());
        let target = target.map_err(|errno| self.unreadable(errno))?;
        if !stays_inside(target.to_bytes(), self.depth) {
            return Err(self.not_allowed("the link could lead out of the layer"));
        }
        visit(&LayerEntry { path: &self.path, node: LayerNode::Link { target: target.to_bytes() } })
    }

    /// Opens an entry, and checks the opened file.
    fn open(
        &self,
        folder: BorrowedFd<'_>,
        name: &CStr,
        flags: OFlags,
    ) -> Result<(OwnedFd, Stat), LayerStoreError> {
        let opened = rustix::fs::openat(folder, name, flags, Mode::empty());
        let opened = opened.map_err(|errno| self.unreadable(errno))?;
        let stat = rustix::fs::fstat(&opened).map_err(|errno| self.unreadable(errno))?;
        self.check_stat(&stat)?;
        self.check_xattrs(opened.as_fd())?;
        Ok((opened, stat))
    }

    /// Checks the rules for entries of every kind.
    fn check_stat(&self, stat: &Stat) -> Result<(), LayerStoreError> {
        if i128::from(stat.st_dev) != self.device {
            return Err(self.not_allowed("it is on another file system"));
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink && stat.st_mode & 0o7000 != 0 {
            return Err(self.not_allowed("setuid, setgid and sticky bits are not allowed"));
        }
        Ok(())
    }

    fn check_xattrs(&self, opened: BorrowedFd<'_>) -> Result<(), LayerStoreError> {
        let mut list = [0; 4_096];
        let len = match rustix::fs::flistxattr(opened, &mut list) {
            Ok(len) => len,
            Err(Errno::NOTSUP) => 0,
            Err(Errno::RANGE) => return Err(self.not_allowed("it has too many attributes")),
            Err(errno) => return Err(self.unreadable(errno)),
        };
        if list[..len].split(|byte| *byte == 0).any(|name| PRIVILEGE_XATTRS.contains(&name)) {
            return Err(self.not_allowed("capabilities and ACLs are not allowed"));
        }
        Ok(())
    }

    fn seal_or_check_mode(
        &self,
        opened: BorrowedFd<'_>,
        stat: &Stat,
        sealed: u32,
    ) -> Result<(), LayerStoreError> {
        if stat.st_mode & 0o777 == sealed as rustix::fs::RawMode {
            return Ok(());
        }
        match self.pass {
            ModePolicy::Check => Err(self.not_allowed("its mode was changed")),
            ModePolicy::Seal => {
                rustix::fs::fchmod(opened, Mode::from_raw_mode(sealed as rustix::fs::RawMode))
                    .map_err(|errno| LayerStoreError::io("change the mode of", self.display_path(), errno))
            }
        }
    }

    fn display_path(&self) -> String {
        if self.path.is_empty() { ".".to_owned() } else { escape_path(&self.path) }
    }

    fn not_allowed(&self, why: &'static str) -> LayerStoreError {
        LayerStoreError::NotAllowed { path: self.display_path(), why }
    }

    fn unreadable(&self, errno: Errno) -> LayerStoreError {
        match errno {
            Errno::ACCESS => self.not_allowed("it cannot be read"),
            // The entry existed a moment ago, with another type.
            Errno::NOENT | Errno::LOOP | Errno::NOTDIR => self.not_allowed("it changed during inspection"),
            Errno::IO => self.not_allowed("disk read error"),
            errno => LayerStoreError::io("read", self.display_path(), errno),
        }
    }
}

/// Escapes a path for a message: untrusted names may contain control characters.
pub(super) fn escape_path(path: &[u8]) -> String {
    String::from_utf8_lossy(path).escape_debug().to_string()
}

/// Returns whether a link at this depth can only lead into the layer.
fn stays_inside(target: &[u8], depth: usize) -> bool {
    target.len() <= MAX_PATH_BYTES && link_stays_inside(target, depth)
}

/// A summary of the entries of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TreeSummary {
    pub(super) tree: ContentDigest,
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

/// Reads and hashes all entries.
pub(super) fn summarize(top: OwnedFd, pass: ModePolicy, limit: u64) -> Result<TreeSummary, LayerStoreError> {
    let mut hasher = Hasher::new("belljar tree 1");
    let (mut bytes, mut entries) = (0, 0);
    let mut chunk = vec![0; CHUNK_BYTES];
    walk(top, pass, limit, &mut |entry| {
        entries += 1;
        hasher.part(entry.path);
        match &entry.node {
            LayerNode::Folder => hasher.part(b"folder"),
            LayerNode::Link { target } => {
                hasher.part(b"link");
                hasher.part(target);
            }
            LayerNode::File { file, executable, size, .. } => {
                bytes += size;
                hasher.part(if *executable { b"program" } else { b"file" });
                hasher.part(hash_content(file, *size, entry.path, &mut chunk)?.as_bytes());
            }
        }
        Ok(())
    })?;
    Ok(TreeSummary { tree: hasher.finish(), bytes, entries })
}

fn hash_content(
    mut file: &File,
    size: u64,
    path: &[u8],
    chunk: &mut [u8],
) -> Result<ContentDigest, LayerStoreError> {
    let unfit = |why| LayerStoreError::NotAllowed { path: escape_path(path), why };
    let mut hasher = Hasher::new("belljar file 1");
    hasher.number(size);
    let mut left = size;
    loop {
        let len = match file.read(chunk) {
            Ok(0) => break,
            Ok(len) => len as u64,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => return Err(unfit("disk read error")),
        };
        left = left.checked_sub(len).ok_or_else(|| unfit("it changed during reading"))?;
        hasher.bytes(&chunk[..len as usize]);
    }
    if left > 0 {
        return Err(unfit("it changed during reading"));
    }
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_components_are_allowed_only_at_the_start_of_a_link() {
        for (target, depth) in [("a", 0), ("../a", 1), ("./../../a/b", 2), ("a/./b/", 0), (".", 0), ("..", 1)]
        {
            assert!(stays_inside(target.as_bytes(), depth), "{target}");
        }
        for (target, depth) in [("", 9), ("/etc", 9), ("..", 0), ("../../a", 1), ("a/../b", 9), ("./..", 0)] {
            assert!(!stays_inside(target.as_bytes(), depth), "{target}");
        }
        assert!(!stays_inside(&[b'a'; MAX_PATH_BYTES + 1], 0));
    }
}
