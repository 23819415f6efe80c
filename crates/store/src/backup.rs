//! A copy of the whole database, taken while it is in use.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot;

use crate::error::{Error, Kind};
use crate::open;
use crate::store::Store;

/// Pages copied between two looks at whether anybody still waits.
const STEP: i32 = 1_024;

impl Store {
    /// Copies the database, as it is at one moment, to a file that is not there yet. Writers go on meanwhile. The file
    /// appears under its name when it is complete, and is as private as the database.
    ///
    /// # Errors
    /// There is such a file, another backup is under way, or a disk refuses. Nothing is left behind.
    pub async fn backup_to(&self, path: &Path) -> Result<(), Error> {
        let turn = Turn::take(&self.backing_up)?;
        let (source, path) = (self.path.clone(), path.to_owned());
        let (reply, answer) = oneshot::channel();
        let work = move || {
            let copied = copy(&source, &path, || reply.is_closed());
            // Before the answer: whoever has it may ask for the next one.
            drop(turn);
            drop(reply.send(copied));
        };
        let started = thread::Builder::new().name("store-backup".to_owned()).spawn(work);
        started.map_err(|error| Error::Disk(error.to_string()))?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

/// One backup at a time.
struct Turn(Arc<AtomicBool>);

impl Turn {
    fn take(taken: &Arc<AtomicBool>) -> Result<Self, Error> {
        if taken.swap(true, Ordering::Acquire) { Err(Error::BackingUp) } else { Ok(Self(Arc::clone(taken))) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The unfinished copy; removed unless it has got its name.
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

fn copy(source: &Path, path: &Path, given_up: impl Fn() -> bool) -> Result<(), Error> {
    let disk = |error: std::io::Error| Error::Disk(format!("{}: {error}", path.display()));
    if fs::exists(path).map_err(disk)? {
        return Err(Error::Exists(Kind::File));
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = Part(name.into());
    // A part that somebody left is not needed any more: only one process has this data folder.
    drop(fs::remove_file(&part.0));
    open::private(&part.0).map_err(disk)?;
    copy_pages(source, &part.0, given_up)?;
    File::open(&part.0).and_then(|file| file.sync_all()).map_err(disk)?;
    fs::rename(&part.0, path).map_err(disk)
}

fn copy_pages(source: &Path, part: &Path, given_up: impl Fn() -> bool) -> Result<(), Error> {
    let from = open::reader(source)?;
    // One transaction around all steps: otherwise each write of others would make the copy begin again.
    from.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema;")?;
    let mut to = Connection::open_with_flags(part, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    {
        let backup = Backup::new(&from, &mut to)?;
        loop {
            match backup.step(STEP)? {
                StepResult::Done => break,
                StepResult::More if !given_up() => {}
                StepResult::More => return Err(Error::Closed),
                _ => return Err(Error::Busy),
            }
        }
    }
    // The copy is one file, without a log beside it.
    to.pragma_update_and_check(None, "journal_mode", "delete", |_| Ok(()))?;
    to.close().map_err(|(_, error)| error.into())
}
