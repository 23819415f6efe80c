//! The log that SQLite writes ahead of the database, and how it ends.
//!
//! Every commit makes it longer. A thread of its own copies it into the database, since that waits for the disk and
//! nobody should wait for it. Where commits come without a pause the thread never quite catches up, and the writer
//! takes the last steps itself.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

/// So many more pages, and the log is looked after again.
const LONG: i32 = 1_000;
/// Pages after which the writer helps: little is left to copy, and then the log begins anew.
const LONGER: i32 = 8_000;
/// Pages after which the writer also waits for readers, who may need the log's end.
const TOO_LONG: i32 = 40_000;
/// How long it waits then.
const READERS: Duration = Duration::from_millis(200);

thread_local! {
    /// How many pages the log has, as SQLite said at the last commit of this thread.
    static PAGES: Cell<i32> = const { Cell::new(0) };
}

/// Who copies, does so alone: SQLite would refuse the second one.
type Turn = Arc<Mutex<()>>;

/// The writer's eye on the log.
pub(crate) struct Watch {
    wake: SyncSender<()>,
    turn: Turn,
    looked_after: Cell<i32>,
}

/// What the copying thread waits for; it ends with the [`Watch`].
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
    /// The copying thread.
    pub(crate) fn run(&self, connection: &Connection) {
        while self.wakes.recv().is_ok() {
            copy(connection, &self.turn);
        }
    }
}

impl Watch {
    /// Before the first commit: also keeps SQLite from copying within commits.
    pub(crate) fn begin(&self, connection: &Connection) {
        connection.wal_hook(Some(|_, pages| {
            PAGES.set(pages);
            Ok(())
        }));
    }

    /// After a commit and its answers.
    pub(crate) fn look(&self, connection: &Connection) {
        let pages = PAGES.get();
        if pages < self.looked_after.get() {
            // It has begun anew.
            self.looked_after.set(0);
        }
        // Not at every commit: a long reader, such as a backup, may keep the log long for a while.
        if pages - self.looked_after.get() < LONG {
            return;
        }
        self.looked_after.set(pages);
        match pages {
            TOO_LONG.. => cut(connection, &self.turn),
            LONGER.. => copy(connection, &self.turn),
            // One that is awake already sees to this as well.
            _ => drop(self.wake.try_send(())),
        }
    }

    /// After the last commit: what is left is one file.
    pub(crate) fn end(&self, connection: &Connection) {
        cut(connection, &self.turn);
    }
}

/// Waits for nobody but the disk. Where the disk refuses, the log stays, and is looked after again later.
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
