//! Disks in files: creates them in the data folder, within what the folder can hold.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_engine::provider::ProviderError;
use belljar_engine::quantity::show_bytes;
use belljar_jail::disk_file::{self, DiskFile};
use rustix::fs::{Mode, OFlags};

/// Space of the data folder that disks leave free, for the database and everything else in it.
const KEPT_FREE_BYTES: u64 = 1 << 30;

/// The disks in files of all open sandboxes.
#[derive(Debug, Clone)]
pub(super) struct Disks(Arc<DisksInner>);

#[derive(Debug)]
struct DisksInner {
    folder: OwnedFd,
    open: Mutex<OpenDisks>,
}

/// Open disks, each with its number and size. One that is being created has no file yet.
#[derive(Debug, Default)]
struct OpenDisks {
    all: Vec<(u64, u64, Option<File>)>,
    next: u64,
}

/// The reserved space of a disk. Dropping it frees the space.
#[derive(Debug)]
pub(super) struct DiskReservation {
    disks: Disks,
    number: u64,
}

impl Disks {
    /// Opens the folder in which disks are created. Tenants must not be able to reach it.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, flags, Mode::empty())?;
        Ok(Self(Arc::new(DisksInner { folder, open: Mutex::default() })))
    }

    /// Creates a disk. Returns its mount, to be attached once, and its reservation.
    pub(super) async fn create(&self, bytes: u64) -> Result<(OwnedFd, DiskReservation), ProviderError> {
        let reserved = self.reserve(bytes)?;
        let disks = self.clone();
        // mkfs and mounting wait for the host's disk.
        let created = tokio::task::spawn_blocking(move || disk_file::create(&disks.0.folder, bytes)).await;
        let created = created.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
        let DiskFile { file, mount } = created;
        reserved.set_file(file);
        Ok((mount, reserved))
    }

    /// Reserves space, unless the open disks and this one could fill the folder.
    fn reserve(&self, bytes: u64) -> Result<DiskReservation, ProviderError> {
        let mut open = self.lock();
        let space = rustix::fs::fstatvfs(&self.0.folder).map_err(|errno| failed(&errno))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let promised =
            open.all.iter().map(|(_, size, file)| size - allocated_bytes(file.as_ref()).min(*size)).sum();
        let left = free.saturating_sub(KEPT_FREE_BYTES).saturating_sub(promised);
        if bytes > left {
            let (bytes, left, promised) = (show_bytes(bytes), show_bytes(left), show_bytes(promised));
            return Err(failed(&format!(
                "{bytes} are more than the {left} that the data folder has left for disks; {promised} are promised to \
                 open sandboxes; close some, ask for a smaller disk (limits.disk_bytes), or use disk_storage 'memory'"
            )));
        }
        open.next += 1;
        let number = open.next;
        open.all.push((number, bytes, None));
        Ok(DiskReservation { disks: self.clone(), number })
    }

    fn lock(&self) -> MutexGuard<'_, OpenDisks> {
        // Each statement leaves the list consistent, so a panic elsewhere does not corrupt it.
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(cause: &dyn std::fmt::Display) -> ProviderError {
    ProviderError::setup("create the disk of the sandbox", cause)
}

fn allocated_bytes(file: Option<&File>) -> u64 {
    let stat = file.and_then(|file| rustix::fs::fstat(file.as_fd()).ok());
    stat.map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512))
}

impl DiskReservation {
    fn set_file(&self, file: File) {
        let mut open = self.disks.lock();
        if let Some(disk) = open.all.iter_mut().find(|(number, ..)| *number == self.number) {
            disk.2 = Some(file);
        }
    }
}

impl Drop for DiskReservation {
    fn drop(&mut self) {
        self.disks.lock().all.retain(|(number, ..)| *number != self.number);
    }
}
