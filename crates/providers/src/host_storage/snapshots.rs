//! Snapshots: one file each, written under a temporary name until it is complete and synced.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use belljar_engine::host_storage::HostStorageError;
use belljar_engine::sandbox_handle::ByteSource;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{DataFolder, OpenFolders, file_name, places_error, unknown_entries};

const WRITE_STEP: &str = "write a snapshot";
const COMPLETE_SUFFIX: &str = ".tar";
const PARTIAL_SUFFIX: &str = ".part";
/// Bytes read and written at once.
const CHUNK_BYTES: usize = 256 << 10;

/// A file that is not complete. Dropping it removes the file.
struct PartialSnapshot {
    folders: Arc<OpenFolders>,
    name: Option<CString>,
}

impl Drop for PartialSnapshot {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // On failure, the next start removes it.
            let _removed = rustix::fs::unlinkat(&self.folders.snapshots, name, AtFlags::empty());
        }
    }
}

pub(super) async fn write(
    disk: &DataFolder,
    id: &str,
    mut source: ByteSource<'_>,
    most: u64,
) -> Result<u64, HostStorageError> {
    let (part, whole) = (file_name(id, PARTIAL_SUFFIX)?, file_name(id, COMPLETE_SUFFIX)?);
    let name = part.clone();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let file = disk.run_blocking(WRITE_STEP, move |folders| open(folders, &name, flags)).await?;
    let mut guard = PartialSnapshot { folders: Arc::clone(&disk.folders), name: Some(part.clone()) };
    let mut file = tokio::fs::File::from_std(file);
    let failed = |error| places_error(WRITE_STEP, error);
    let mut piece = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    loop {
        let len = source.read(&mut piece).await.map_err(HostStorageError::Source)?;
        if len == 0 {
            break;
        }
        bytes += len as u64;
        if bytes > most {
            return Err(HostStorageError::TooLarge(most));
        }
        file.write_all(&piece[..len]).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)?;
    file.sync_all().await.map_err(failed)?;
    let complete = move |folders: &OpenFolders| {
        rustix::fs::renameat(&folders.snapshots, &part, &folders.snapshots, &whole)?;
        rustix::fs::fsync(&folders.snapshots)
    };
    disk.run_blocking(WRITE_STEP, complete).await?;
    guard.name = None;
    Ok(bytes)
}

pub(super) async fn read(disk: &DataFolder, id: &str) -> Result<ByteSource<'static>, HostStorageError> {
    let name = file_name(id, COMPLETE_SUFFIX)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
    let file = disk.run_blocking("read a snapshot", move |folders| open(folders, &name, flags)).await?;
    let mut file = tokio::fs::File::from_std(file);
    file.set_max_buf_size(CHUNK_BYTES);
    Ok(Box::pin(file))
}

pub(super) async fn remove(disk: &DataFolder, id: &str) -> Result<(), HostStorageError> {
    let name = file_name(id, COMPLETE_SUFFIX)?;
    let unlink =
        move |folders: &OpenFolders| rustix::fs::unlinkat(&folders.snapshots, &name, AtFlags::empty());
    disk.run_blocking("remove a snapshot", unlink).await
}

/// Removes every file that is not the complete file of a known snapshot.
pub(super) fn remove_orphans(folders: &OpenFolders, known: &[String]) -> Result<usize, Errno> {
    let is_known = |name: &str| {
        name.strip_suffix(COMPLETE_SUFFIX).is_some_and(|name| known.iter().any(|known| known == name))
    };
    let left = unknown_entries(&folders.snapshots, is_known)?;
    for name in &left {
        rustix::fs::unlinkat(&folders.snapshots, name, AtFlags::empty())?;
    }
    Ok(left.len())
}

fn open(folders: &OpenFolders, name: &CString, flags: OFlags) -> Result<File, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let file: OwnedFd = rustix::fs::openat(&folders.snapshots, name, flags | OFlags::CLOEXEC, mode)?;
    Ok(File::from(file))
}
