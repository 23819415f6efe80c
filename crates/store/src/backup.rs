//! Copies the whole database while it is in use.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot;

use crate::error::{Error, ObjectKind};
use crate::open;
use crate::store::Store;

/// Pages copied between two checks whether the caller still waits.
const STEP_PAGES: i32 = 1_024;

impl Store {
    /// Copies a snapshot of the database to a new file, without blocking writers. The file appears under its
    /// name once it is complete, and is as private as the database.
    ///
    /// # Errors
    /// The file exists, another backup is running, or a disk fails. No partial file is left behind.
    pub async fn backup_to(&self, path: &Path) -> Result<(), Error> {
        let turn = BackupPermit::acquire(&self.backing_up)?;
        let (source, path) = (self.path.clone(), path.to_owned());
        let (reply, answer) = oneshot::channel();
        let work = move || {
            let copied = copy_to_file(&source, &path, || reply.is_closed());
            // Released before the reply, because the caller may request the next backup as soon as it has the
            // reply.
            drop(turn);
            drop(reply.send(copied));
        };
        let started = thread::Builder::new().name("store-backup".to_owned()).spawn(work);
        started.map_err(|error| Error::Disk(error.to_string()))?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

/// Permit for the only backup that may run at a time.
struct BackupPermit(Arc<AtomicBool>);

impl BackupPermit {
    fn acquire(taken: &Arc<AtomicBool>) -> Result<Self, Error> {
        if taken.swap(true, Ordering::Acquire) {
            Err(Error::BackupRunning)
        } else {
            Ok(Self(Arc::clone(taken)))
        }
    }
}

impl Drop for BackupPermit {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The incomplete copy; deleted on drop unless it was renamed.
struct PartialFile(PathBuf);

impl Drop for PartialFile {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

fn copy_to_file(source: &Path, path: &Path, given_up: impl Fn() -> bool) -> Result<(), Error> {
    let disk = |error: std::io::Error| Error::Disk(format!("{}: {error}", path.display()));
    if fs::exists(path).map_err(disk)? {
        return Err(Error::Exists(ObjectKind::File));
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = PartialFile(name.into());
    // Only one process uses this data folder, so a leftover partial file is stale.
    drop(fs::remove_file(&part.0));
    open::open_private(&part.0).map_err(disk)?;
    copy_pages(source, &part.0, given_up)?;
    File::open(&part.0).and_then(|file| file.sync_all()).map_err(disk)?;
    fs::rename(&part.0, path).map_err(disk)
}

fn copy_pages(source: &Path, part: &Path, given_up: impl Fn() -> bool) -> Result<(), Error> {
    let from = open::open_reader(source)?;
    // One transaction around all steps: otherwise every concurrent write would restart the copy.
    from.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema;")?;
    let mut to = Connection::open_with_flags(part, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    {
        let backup = Backup::new(&from, &mut to)?;
        loop {
            match backup.step(STEP_PAGES)? {
                StepResult::Done => break,
                StepResult::More if !given_up() => {}
                StepResult::More => return Err(Error::Closed),
                _ => return Err(Error::Busy),
            }
        }
    }
    // Makes the copy a single file, without a write-ahead log.
    to.pragma_update_and_check(None, "journal_mode", "delete", |_| Ok(()))?;
    to.close().map_err(|(_, error)| error.into())
}
