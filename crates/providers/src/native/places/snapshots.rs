//! Snapshots: one file each, written under a temporary name until it is complete and synced.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use belljar_engine::living::ByteSource;
use belljar_engine::places::PlacesError;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Disk, Folders, failure, file_name, others};

const WRITE: &str = "write a snapshot";
const WHOLE: &str = ".tar";
const PART: &str = ".part";
/// Bytes read and written at once.
const PIECE: usize = 256 << 10;

/// A file that is not complete. Dropping it removes the file.
struct Part {
    folders: Arc<Folders>,
    name: Option<CString>,
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // On failure, the next start removes it.
            let _removed = rustix::fs::unlinkat(&self.folders.snapshots, name, AtFlags::empty());
        }
    }
}

pub(super) async fn write(
    disk: &Disk,
    id: &str,
    mut source: ByteSource<'_>,
    most: u64,
) -> Result<u64, PlacesError> {
    let (part, whole) = (file_name(id, PART)?, file_name(id, WHOLE)?);
    let name = part.clone();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let file = disk.blocking(WRITE, move |folders| open(folders, &name, flags)).await?;
    let mut guard = Part { folders: Arc::clone(&disk.folders), name: Some(part.clone()) };
    let mut file = tokio::fs::File::from_std(file);
    let failed = |error| failure(WRITE, error);
    let mut piece = vec![0; PIECE];
    let mut bytes = 0;
    loop {
        let len = source.read(&mut piece).await.map_err(PlacesError::Source)?;
        if len == 0 {
            break;
        }
        bytes += len as u64;
        if bytes > most {
            return Err(PlacesError::TooLarge(most));
        }
        file.write_all(&piece[..len]).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)?;
    file.sync_all().await.map_err(failed)?;
    let complete = move |folders: &Folders| {
        rustix::fs::renameat(&folders.snapshots, &part, &folders.snapshots, &whole)?;
        rustix::fs::fsync(&folders.snapshots)
    };
    disk.blocking(WRITE, complete).await?;
    guard.name = None;
    Ok(bytes)
}

pub(super) async fn read(disk: &Disk, id: &str) -> Result<ByteSource<'static>, PlacesError> {
    let name = file_name(id, WHOLE)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
    let file = disk.blocking("read a snapshot", move |folders| open(folders, &name, flags)).await?;
    let mut file = tokio::fs::File::from_std(file);
    file.set_max_buf_size(PIECE);
    Ok(Box::pin(file))
}

pub(super) async fn remove(disk: &Disk, id: &str) -> Result<(), PlacesError> {
    let name = file_name(id, WHOLE)?;
    let unlink = move |folders: &Folders| rustix::fs::unlinkat(&folders.snapshots, &name, AtFlags::empty());
    disk.blocking("remove a snapshot", unlink).await
}

/// Removes every file that is not the complete file of a known snapshot.
pub(super) fn settle(folders: &Folders, known: &[String]) -> Result<usize, Errno> {
    let is_known =
        |name: &str| name.strip_suffix(WHOLE).is_some_and(|name| known.iter().any(|known| known == name));
    let left = others(&folders.snapshots, is_known)?;
    for name in &left {
        rustix::fs::unlinkat(&folders.snapshots, name, AtFlags::empty())?;
    }
    Ok(left.len())
}

fn open(folders: &Folders, name: &CString, flags: OFlags) -> Result<File, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let file: OwnedFd = rustix::fs::openat(&folders.snapshots, name, flags | OFlags::CLOEXEC, mode)?;
    Ok(File::from(file))
}
