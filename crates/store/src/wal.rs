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
const REQUEST_PAGES: i32 = 1_000;
/// Log length in pages at which the writer checkpoints too: little is left to copy, and the log can then
/// restart.
const WRITER_HELP_PAGES: i32 = 8_000;
/// Log length in pages at which the writer also waits for readers, which may pin the end of the log.
const TRUNCATE_PAGES: i32 = 40_000;
/// How long the writer waits for readers then.
const READER_WAIT: Duration = Duration::from_millis(200);

thread_local! {
    /// Length of the log in pages, as SQLite reported it at this thread's last commit.
    static WAL_PAGES: Cell<i32> = const { Cell::new(0) };
}

/// Serializes checkpoints: SQLite refuses a second concurrent one.
type CheckpointLock = Arc<Mutex<()>>;

/// The writer's monitor of the log's length.
pub(crate) struct WalMonitor {
    wake: SyncSender<()>,
    checkpoint_lock: CheckpointLock,
    last_checkpoint_pages: Cell<i32>,
}

/// State of the checkpoint thread, which ends when the [`WalMonitor`] is dropped.
pub(crate) struct Checkpointer {
    wakes: Receiver<()>,
    checkpoint_lock: CheckpointLock,
}

pub(crate) fn monitor() -> (WalMonitor, Checkpointer) {
    let (wake, wakes) = sync_channel(1);
    let turn = CheckpointLock::default();
    (
        WalMonitor { wake, checkpoint_lock: Arc::clone(&turn), last_checkpoint_pages: Cell::new(0) },
        Checkpointer { wakes, checkpoint_lock: turn },
    )
}

impl Checkpointer {
    /// Runs the checkpoint thread.
    pub(crate) fn run(&self, connection: &Connection) {
        while self.wakes.recv().is_ok() {
            checkpoint_passively(connection, &self.checkpoint_lock);
        }
    }
}

impl WalMonitor {
    /// Installs the commit hook; call before the first commit. Also disables SQLite's own checkpoints within
    /// commits.
    pub(crate) fn install_hook(&self, connection: &Connection) {
        connection.wal_hook(Some(|_, pages| {
            WAL_PAGES.set(pages);
            Ok(())
        }));
    }

    /// Requests or performs a checkpoint if the log is long; call after a commit and its replies.
    pub(crate) fn after_commit(&self, connection: &Connection) {
        let pages = WAL_PAGES.get();
        if pages < self.last_checkpoint_pages.get() {
            // The log has restarted.
            self.last_checkpoint_pages.set(0);
        }
        // Not at every commit: a long read, such as a backup, may keep the log long for a while.
        if pages - self.last_checkpoint_pages.get() < REQUEST_PAGES {
            return;
        }
        self.last_checkpoint_pages.set(pages);
        match pages {
            TRUNCATE_PAGES.. => checkpoint_and_truncate(connection, &self.checkpoint_lock),
            WRITER_HELP_PAGES.. => checkpoint_passively(connection, &self.checkpoint_lock),
            // A full channel means that the thread is already awake.
            _ => drop(self.wake.try_send(())),
        }
    }

    /// Truncates the log after the last commit, so that the database is a single file.
    pub(crate) fn truncate_at_end(&self, connection: &Connection) {
        checkpoint_and_truncate(connection, &self.checkpoint_lock);
    }
}

/// Checkpoints without waiting for readers. If the disk fails, the log stays and is retried later.
fn checkpoint_passively(connection: &Connection, turn: &CheckpointLock) {
    let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    drop(connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())));
}

fn checkpoint_and_truncate(connection: &Connection, turn: &CheckpointLock) {
    let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    drop(connection.busy_timeout(READER_WAIT));
    drop(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
    drop(connection.busy_timeout(crate::open::BUSY_TIMEOUT));
}
