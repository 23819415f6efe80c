//! Checkpoints SQLite's write-ahead log (WAL).
//!
//! Every commit makes the log longer. A separate thread copies it into the database, because checkpointing
//! waits for the disk and commits should not. Under a continuous load of commits that thread never quite
//! catches up, and the writer does the last steps itself.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

/// Pages by which the log must grow before the next checkpoint is requested.
const LONG: i32 = 1_000;
/// Log length in pages at which the writer checkpoints too: little is left to copy, and the log can then
/// restart.
const LONGER: i32 = 8_000;
/// Log length in pages at which the writer also waits for readers, which may pin the end of the log.
const TOO_LONG: i32 = 40_000;
/// How long the writer waits for readers then.
const READERS: Duration = Duration::from_millis(200);

thread_local! {
    /// Length of the log in pages, as SQLite reported it at this thread's last commit.
    static PAGES: Cell<i32> = const { Cell::new(0) };
}

/// Serializes checkpoints: SQLite refuses a second concurrent one.
type Turn = Arc<Mutex<()>>;

/// The writer's monitor of the log's length.
pub(crate) struct Watch {
    wake: SyncSender<()>,
    turn: Turn,
    looked_after: Cell<i32>,
}

/// State of the checkpoint thread, which ends when the [`Watch`] is dropped.
pub(crate) struct Copier {
    wakes: Receiver<()>,
    turn: Turn,
}

pub(crate) fn watch() -> (Watch, Copier) {
    let (wake, wakes) = sync_channel(1);
    let turn = Turn::default();
    (Watch { wake, turn: Arc::clone(&turn), looked_after: Cell::new(0) }, Copier { wakes, turn })
}

impl Copier {
    /// Runs the checkpoint thread.
    pub(crate) fn run(&self, connection: &Connection) {
        while self.wakes.recv().is_ok() {
            copy(connection, &self.turn);
        }
    }
}

impl Watch {
    /// Installs the commit hook; call before the first commit. Also disables SQLite's own checkpoints within
    /// commits.
    pub(crate) fn begin(&self, connection: &Connection) {
        connection.wal_hook(Some(|_, pages| {
            PAGES.set(pages);
            Ok(())
        }));
    }

    /// Requests or performs a checkpoint if the log is long; call after a commit and its replies.
    pub(crate) fn look(&self, connection: &Connection) {
        let pages = PAGES.get();
        if pages < self.looked_after.get() {
            // The log has restarted.
            self.looked_after.set(0);
        }
        // Not at every commit: a long read, such as a backup, may keep the log long for a while.
        if pages - self.looked_after.get() < LONG {
            return;
        }
        self.looked_after.set(pages);
        match pages {
            TOO_LONG.. => cut(connection, &self.turn),
            LONGER.. => copy(connection, &self.turn),
            // A full channel means that the thread is already awake.
            _ => drop(self.wake.try_send(())),
        }
    }

    /// Truncates the log after the last commit, so that the database is a single file.
    pub(crate) fn end(&self, connection: &Connection) {
        cut(connection, &self.turn);
    }
}

/// Checkpoints without waiting for readers. If the disk fails, the log stays and is retried later.
fn copy(connection: &Connection, turn: &Turn) {
    let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    drop(connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())));
}

fn cut(connection: &Connection, turn: &Turn) {
    let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    drop(connection.busy_timeout(READERS));
    drop(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
    drop(connection.busy_timeout(crate::open::BUSY));
}
