//! What outlives sandboxes, below the data folder:
//!
//! ```text
//! volumes/ID     a volume's folder, in which tenants write      snapshots/ID.tar    whole, or not there
//! removed/ID     renamed first, then removed                    snapshots/ID.part   being written
//! ```
//!
//! Everything is reached from folders that are held open, by names of ours without any folder in them.

mod host_folders;
mod measure;
mod remove;
mod snapshots;
#[cfg(test)]
mod tests;
mod walk;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use belljar_engine::living::ByteSource;
use belljar_engine::places::{HostFolder, Kept, Measurement, Places, PlacesError};
use belljar_engine::provider::ProviderError;
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use tokio::sync::Mutex;

pub use host_folders::HostFolderSpec;
use host_folders::HostFolders;

const PRIVATE: Mode = Mode::RWXU;

/// What outlives sandboxes, on this machine's disk.
#[derive(Debug)]
pub struct Disk {
    folders: Arc<Folders>,
    host: HostFolders,
    /// One is measured at a time, so that all of them together never take more than one processor.
    measuring: Mutex<()>,
}

#[derive(Debug)]
struct Folders {
    path: PathBuf,
    volumes: OwnedFd,
    removed: OwnedFd,
    snapshots: OwnedFd,
}

impl Disk {
    /// Opens what is kept in a data folder, and makes what is missing there.
    ///
    /// # Errors
    /// Names the folder that cannot be used.
    pub fn open(data: &Path, host_folders: Vec<HostFolderSpec>) -> Result<Self, ProviderError> {
        let failed = |error: io::Error| ProviderError::Setup {
            step: format!("open the data folder {}", data.display()),
            cause: error.to_string(),
        };
        let path = std::fs::canonicalize(data).map_err(failed)?;
        let folder = |name: &str| open_private(&path.join(name)).map_err(|errno| failed(errno.into()));
        let (volumes, removed, snapshots) = (folder("volumes")?, folder("removed")?, folder("snapshots")?);
        let host = HostFolders::open(host_folders, &path)?;
        let folders = Arc::new(Folders { path, volumes, removed, snapshots });
        Ok(Self { folders, host, measuring: Mutex::default() })
    }

    /// Does something that waits for the disk where nobody else waits for it.
    async fn blocking<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Folders) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, PlacesError> {
        let folders = Arc::clone(&self.folders);
        let done = tokio::task::spawn_blocking(move || work(&folders)).await;
        let done = done.map_err(|error| PlacesError::Io { what, error: io::Error::other(error) })?;
        done.map_err(|errno| failure(what, errno.into()))
    }
}

fn open_private(path: &Path) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdir(path, PRIVATE) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::fchmod(&folder, PRIVATE)?;
    Ok(folder)
}

fn failure(what: &'static str, error: io::Error) -> PlacesError {
    match error.kind() {
        io::ErrorKind::NotFound => PlacesError::Missing,
        io::ErrorKind::AlreadyExists => PlacesError::Exists,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => PlacesError::NoSpace,
        _ => PlacesError::Io { what, error },
    }
}

/// An id as the name of a file. Ids come from us; whatever else is not looked for.
fn file_name(id: &str, ending: &str) -> Result<CString, PlacesError> {
    let fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let name = Some(format!("{id}{ending}"))
        .filter(|_| (1..=64).contains(&id.len()) && id.bytes().all(fine))
        .and_then(|name| CString::new(name).ok());
    name.ok_or_else(|| PlacesError::Name(id.escape_debug().to_string()))
}

impl Places for Disk {
    fn make_volume<'a>(&'a self, id: &'a str) -> Kept<'a, ()> {
        Box::pin(async move {
            let name = file_name(id, "")?;
            self.blocking("make a volume", move |folders| {
                rustix::fs::mkdirat(&folders.volumes, &name, PRIVATE)?;
                rustix::fs::fsync(&folders.volumes)
            })
            .await
        })
    }

    fn remove_volume<'a>(&'a self, id: &'a str) -> Kept<'a, ()> {
        Box::pin(async move {
            let name = file_name(id, "")?;
            self.blocking("remove a volume", move |folders| {
                rustix::fs::renameat(&folders.volumes, &name, &folders.removed, &name)?;
                remove::remove(folders.removed.as_fd(), &name)
            })
            .await
        })
    }

    fn volume_folder(&self, id: &str) -> PathBuf {
        self.folders.path.join("volumes").join(id)
    }

    fn measure_volume<'a>(&'a self, id: &'a str, most: u64) -> Kept<'a, Measurement> {
        Box::pin(async move {
            let name = file_name(id, "")?;
            let _turn = self.measuring.lock().await;
            self.blocking("measure a volume", move |folders| {
                let started = Instant::now();
                let held = measure::measure(|| walk::open_inside(folders.volumes.as_fd(), &name), most)?;
                Ok(Measurement { held, took: started.elapsed() })
            })
            .await
        })
    }

    fn free_bytes(&self) -> Kept<'_, u64> {
        Box::pin(self.blocking("look at the disk", |folders| {
            let found = rustix::fs::fstatvfs(&folders.volumes)?;
            Ok(found.f_bavail.saturating_mul(found.f_frsize))
        }))
    }

    fn write_snapshot<'a>(&'a self, id: &'a str, source: ByteSource<'a>, most: u64) -> Kept<'a, u64> {
        Box::pin(snapshots::write(self, id, source, most))
    }

    fn read_snapshot<'a>(&'a self, id: &'a str) -> Kept<'a, ByteSource<'static>> {
        Box::pin(snapshots::read(self, id))
    }

    fn remove_snapshot<'a>(&'a self, id: &'a str) -> Kept<'a, ()> {
        Box::pin(snapshots::remove(self, id))
    }

    fn settle<'a>(&'a self, volumes: &'a [String], snapshots: &'a [String]) -> Kept<'a, usize> {
        let (volumes, snapshots) = (volumes.to_vec(), snapshots.to_vec());
        Box::pin(self.blocking("remove what is left over", move |folders| {
            let files = snapshots::settle(folders, &snapshots)?;
            for name in others(&folders.volumes, |name| volumes.iter().any(|known| known == name))? {
                rustix::fs::renameat(&folders.volumes, &name, &folders.removed, &name)?;
            }
            let left = others(&folders.removed, |_| false)?;
            for name in &left {
                remove::remove(folders.removed.as_fd(), name)?;
            }
            Ok(files + left.len())
        }))
    }

    fn host_folder<'a>(&'a self, name: &'a str) -> Kept<'a, HostFolder> {
        Box::pin(std::future::ready(self.host.find(name)))
    }
}

/// What is in a folder of ours and not known.
fn others(folder: &OwnedFd, is_known: impl Fn(&str) -> bool) -> Result<Vec<CString>, Errno> {
    let mut others = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_owned();
        let ours = name.to_str().is_ok_and(|name| name == "." || name == ".." || is_known(name));
        if !ours {
            others.push(name);
        }
    }
    Ok(others)
}
