//! The log that SQLite writes ahead of the database, and how it ends.
//!
//! Every commit makes it longer. A thread of its own copies it into the database, since that waits for the disk and
//! nobody should wait for it. Where commits come without a pause the thread never quite catches up, and the writer
//! takes the last steps itself.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rusqlite::Connection;

/// Pages after which the log is copied.
const LONG: i32 = 1_000;
/// Pages after which the writer helps: little is left, and after it the log begins anew.
const LONGER: i32 = 8_000;
/// Pages after which the writer also waits for readers, who may need the log's end.
const TOO_LONG: i32 = 40_000;
/// How long it waits then.
const READERS: Duration = Duration::from_millis(200);

thread_local! {
    /// How many pages the log has, as SQLite said at the last commit of this thread.
    static PAGES: Cell<i32> = const { Cell::new(0) };
}

/// The writer's eye on the log.
pub(crate) struct Watch {
    wake: SyncSender<()>,
}

/// Where the copying thread waits; it ends with the [`Watch`].
pub(crate) type Wakes = Receiver<()>;

pub(crate) fn watch() -> (Watch, Wakes) {
    let (wake, wakes) = sync_channel(1);
    (Watch { wake }, wakes)
}

/// The copying thread.
pub(crate) fn run(connection: &Connection, wakes: &Wakes) {
    while wakes.recv().is_ok() {
        copy(connection);
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
        match PAGES.replace(0) {
            TOO_LONG.. => cut(connection),
            LONGER.. => copy(connection),
            // One that is awake already sees to this as well.
            LONG.. => drop(self.wake.try_send(())),
            _ => {}
        }
    }
}

/// Never waits for anybody but the disk. Where the disk refuses, the log stays, and a later commit tells again.
fn copy(connection: &Connection) {
    drop(connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())));
}

fn cut(connection: &Connection) {
    drop(connection.busy_timeout(READERS));
    drop(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
    drop(connection.busy_timeout(crate::open::BUSY));
}
