//! The store: its threads, and the two queues that lead to them.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use rusqlite::{Connection, OptionalExtension, Params, Row};
use tokio::sync::mpsc;

use crate::error::{Error, ObjectKind, require_changed_row};
use crate::open::{self, DatabaseLock, StoreOptions};
use crate::readers::{self, ReaderPool};
use crate::wal;
use crate::writer::{self, WriteQueue};

/// Size in bytes of a write that carries only names and numbers.
const SMALL_WRITE_BYTES: usize = 1 << 10;

/// The database as the rest of the server uses it. Share it in an `Arc`.
#[derive(Debug)]
pub struct Store {
    pub(crate) path: PathBuf,
    pub(crate) backing_up: Arc<AtomicBool>,
    queue: WriteQueue,
    readers: ReaderPool,
    /// Each thread holds a sender of this channel, so the channel closes when the last thread ends.
    threads: mpsc::Receiver<()>,
}

/// Held by every thread: the database lock and a sender that shows the thread is alive. The fields drop in
/// this order, so that once [`Store::close`] returns, the lock is free.
struct ThreadGuard {
    _lock: Arc<DatabaseLock>,
    _alive: mpsc::Sender<()>,
}

impl Store {
    /// Opens the database, creating it if needed, and migrates its schema. Blocks; call it at startup.
    ///
    /// # Errors
    /// Another process uses the database, the file is not Belljar's or has a newer schema, or the disk fails.
    pub fn open(path: &Path, options: &StoreOptions) -> Result<Self, Error> {
        let lock = Arc::new(DatabaseLock::acquire(path)?);
        let (alive, threads) = mpsc::channel(1);
        let life = || ThreadGuard { _lock: Arc::clone(&lock), _alive: alive.clone() };
        let connection = open::open_writer(path, options)?;
        let readers =
            (0..options.readers.get()).map(|_| open::open_reader(path)).collect::<Result<Vec<_>, _>>()?;

        let (watch, copier) = wal::monitor();
        let second = open::open_checkpointer(path, options)?;
        spawn(path, "store-log", life(), second, move |connection| copier.run(connection))?;
        let (queue, writes) = WriteQueue::new(options.max_queued, options.queue_bytes);
        spawn(path, "store-writer", life(), connection, move |connection| {
            writer::run(connection, writes, &watch);
        })?;
        let (reads, waiting) = ReaderPool::new(options.max_queued);
        for connection in readers {
            let (waiting, timeout) = (Arc::clone(&waiting), options.read_timeout);
            spawn(path, "store-reader", life(), connection, move |connection| {
                readers::run(connection, &waiting, timeout);
            })?;
        }
        Ok(Self { path: path.to_owned(), backing_up: Arc::default(), queue, readers: reads, threads })
    }

    /// Completes all queued writes and closes the database.
    pub async fn close(self) {
        let Self { queue, readers, mut threads, .. } = self;
        drop((queue, readers));
        // Nothing is ever sent: `recv` returns when the last thread ends.
        threads.recv().await;
    }

    /// Writes something new; refused when the queue is full.
    pub(crate) async fn write<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> Result<T, Error> + Send + 'static,
    {
        self.queue.try_enqueue(SMALL_WRITE_BYTES, work)?.await.map_err(|_| Error::Closed)?
    }

    /// Records something that has already happened; waits while the queue is full.
    pub(crate) async fn write_waiting<T, F>(&self, bytes: usize, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> Result<T, Error> + Send + 'static,
    {
        self.queue.enqueue(SMALL_WRITE_BYTES + bytes, work).await?.await.map_err(|_| Error::Closed)?
    }

    pub(crate) async fn read<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    {
        self.readers.read(work).await
    }

    /// Executes a statement that must change a row, or else an object of this kind was not found. Refused when
    /// the queue is full.
    pub(crate) async fn change_row<P>(
        &self,
        sql: &'static str,
        values: P,
        kind: ObjectKind,
    ) -> Result<(), Error>
    where
        P: Params + Clone + Send + 'static,
    {
        self.write(move |db| change_row(db, sql, values.clone(), kind)).await
    }

    /// Executes a statement like [`Store::change_row`] that records something that has already happened; waits
    /// while the queue is full.
    pub(crate) async fn record_change<P>(
        &self,
        sql: &'static str,
        values: P,
        kind: ObjectKind,
    ) -> Result<(), Error>
    where
        P: Params + Clone + Send + 'static,
    {
        self.write_waiting(0, move |db| change_row(db, sql, values.clone(), kind)).await
    }

    /// Returns all rows of a query.
    pub(crate) async fn rows<T: Send + 'static>(
        &self,
        sql: impl Into<Cow<'static, str>>,
        values: impl Params + Send + 'static,
        from_row: fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        let sql = sql.into();
        self.read(move |db| {
            Ok(db.prepare_cached(&sql)?.query_map(values, from_row)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Returns the only row of a query, if there is one.
    pub(crate) async fn row<T: Send + 'static>(
        &self,
        sql: impl Into<Cow<'static, str>>,
        values: impl Params + Send + 'static,
        from_row: fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Error> {
        let sql = sql.into();
        self.read(move |db| Ok(db.prepare_cached(&sql)?.query_row(values, from_row).optional()?)).await
    }

    /// Queues a write without waiting for it. The write is dropped when the queue is full.
    pub(crate) fn write_best_effort<F>(&self, work: F)
    where
        F: FnMut(&Connection) -> Result<(), Error> + Send + 'static,
    {
        drop(self.queue.try_enqueue(SMALL_WRITE_BYTES, work));
    }
}

fn change_row(db: &Connection, sql: &str, values: impl Params, kind: ObjectKind) -> Result<(), Error> {
    require_changed_row(db.prepare_cached(sql)?.execute(values)?, Error::NotFound(kind))
}

/// Starts a thread that owns its connection and closes it before releasing the database lock.
fn spawn(
    path: &Path,
    name: &str,
    life: ThreadGuard,
    connection: Connection,
    work: impl FnOnce(&Connection) + Send + 'static,
) -> Result<(), Error> {
    let thread = move || {
        work(&connection);
        drop(connection);
        drop(life);
    };
    let started = thread::Builder::new().name(name.to_owned()).spawn(thread);
    started.map(drop).map_err(|error| Error::Open { path: path.to_owned(), reason: error.to_string() })
}
