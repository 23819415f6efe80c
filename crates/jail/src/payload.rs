//! Files that go into a jail: an index, then the bytes, in one sealed memory file. It is read inside the jail only,
//! so large files never pass through the launcher.

use std::io::{Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, Mode, OFlags, ResolveFlags, SealFlags};
use rustix::io::Errno;

use crate::spec::{PayloadFile, Place};

const MAX_INDEX: usize = 8 << 20;

/// Packs files.
///
/// # Errors
/// Those of writing to memory.
pub fn pack(files: &[(PayloadFile, &[u8])]) -> std::io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("payload", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(fd);
    let index: Vec<&PayloadFile> = files.iter().map(|(entry, _)| entry).collect();
    let index = postcard::to_allocvec(&index).map_err(std::io::Error::other)?;
    file.write_all(&(index.len() as u32).to_le_bytes())?;
    file.write_all(&index)?;
    for (_, content) in files {
        file.write_all(content)?;
    }
    file.rewind()?;
    let fd = OwnedFd::from(file);
    rustix::fs::fcntl_add_seals(
        &fd,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    Ok(fd)
}

/// A payload that is being read.
pub(crate) struct Payload {
    file: std::fs::File,
    index: Vec<PayloadFile>,
    data: u64,
}

impl Payload {
    pub(crate) fn open(fd: OwnedFd) -> Result<Self, Errno> {
        let file = std::fs::File::from(fd);
        // Read by position: every process of a jail opens the same description.
        let read = || -> std::io::Result<(Vec<u8>, u64)> {
            let mut len = [0; 4];
            file.read_exact_at(&mut len, 0)?;
            let len = u32::from_le_bytes(len) as usize;
            let mut index = vec![0; len.min(MAX_INDEX)];
            file.read_exact_at(&mut index, 4)?;
            Ok((index, 4 + len as u64))
        };
        let (index, data) = read().map_err(|_| Errno::BADMSG)?;
        let index = postcard::from_bytes(&index).map_err(|_| Errno::BADMSG)?;
        Ok(Self { file, index, data })
    }

    /// Writes the files of one place below `folder`, as whoever this process is at the moment.
    pub(crate) fn unpack(&self, place: Place, folder: BorrowedFd<'_>) -> Result<(), (String, Errno)> {
        let mut offset = self.data;
        for entry in &self.index {
            if entry.place == place {
                self.write(entry, offset, folder).map_err(|errno| (entry.path.clone(), errno))?;
            }
            offset += entry.len;
        }
        Ok(())
    }

    fn write(&self, entry: &PayloadFile, mut offset: u64, folder: BorrowedFd<'_>) -> Result<(), Errno> {
        let (parent, name) = make_parents(folder, &entry.path)?;
        let parent = parent.as_ref().map_or(folder, OwnedFd::as_fd);
        let mode = Mode::from_raw_mode(entry.mode);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat2(parent, name, flags, mode, BENEATH)?;
        let end = offset + entry.len;
        while offset < end {
            let chunk = usize::try_from(end - offset).unwrap_or(usize::MAX).min(1 << 20);
            if rustix::fs::sendfile(&file, &self.file, Some(&mut offset), chunk)? == 0 {
                return Err(Errno::BADMSG);
            }
        }
        // The mode given to open is cut by the umask; this is not.
        rustix::fs::fchmod(&file, mode)
    }
}

const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Makes the folders above a file; none of them may be a link, which a playground can hold.
fn make_parents<'a>(folder: BorrowedFd<'_>, path: &'a str) -> Result<(Option<OwnedFd>, &'a str), Errno> {
    let Some((parents, name)) = path.rsplit_once('/') else { return Ok((None, path)) };
    let mut here: Option<OwnedFd> = None;
    for part in parents.split('/') {
        let at = here.as_ref().map_or(folder, OwnedFd::as_fd);
        match rustix::fs::mkdirat(at, part, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        here = Some(rustix::fs::openat2(at, part, flags, Mode::empty(), BENEATH)?);
    }
    Ok((here, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn entry(path: &str, len: usize, mode: u32) -> PayloadFile {
        PayloadFile { place: Place::Workspace, path: path.to_owned(), mode, len: len as u64 }
    }

    #[test]
    fn files_arrive_with_their_modes_and_links_are_not_followed() {
        let folder = std::env::temp_dir().join(format!("belljar-payload-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let dir = std::fs::File::open(&folder).unwrap();
        let packed = pack(&[(entry("a/b/run", 3, 0o755), b"one"), (entry("empty", 0, 0o600), b"")]).unwrap();
        Payload::open(packed).unwrap().unpack(Place::Workspace, dir.as_fd()).unwrap();
        assert_eq!(std::fs::read(folder.join("a/b/run")).unwrap(), b"one");
        assert_eq!(std::fs::metadata(folder.join("a/b/run")).unwrap().permissions().mode() & 0o7777, 0o755);

        std::os::unix::fs::symlink("/tmp", folder.join("link")).unwrap();
        for path in ["link/x", "link"] {
            let packed = pack(&[(entry(path, 1, 0o644), b"x")]).unwrap();
            let (at, _) = Payload::open(packed).unwrap().unpack(Place::Workspace, dir.as_fd()).unwrap_err();
            assert_eq!(at, path);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
