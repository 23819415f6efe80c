//! The single writer thread, which commits writes in groups.
//!
//! Takes all queued writes, up to a maximum, applies them in one transaction, commits, and only then replies.
//! A group never waits to fill up: while one is committed, the next one collects.
//!
//! Each write has a savepoint, so a failed one is rolled back alone. When a whole group fails, as on a full
//! disk, each of its writes is retried alone and gets its own result. The next write tries again, so nothing
//! has to be restarted once the disk has room.

use std::num::NonZeroU16;
use std::sync::Arc;

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc, oneshot};

use crate::error::Error;
use crate::wal::WalMonitor;

/// Maximum number of writes in one transaction.
const MAX_GROUP_WRITES: usize = 256;
/// Unit in which queued bytes are counted, because a semaphore counts in 32 bits.
const PERMIT_BYTES: usize = 1 << 10;

/// A queued write: applied in a group, possibly retried alone, and answered once.
pub(crate) trait QueuedWrite: Send {
    /// Applies the write and returns whether to keep its changes.
    fn apply(&mut self, connection: &Connection) -> bool;
    fn answer(self: Box<Self>, committed: Result<(), Error>);
}

struct WriteJob<T, F> {
    work: F,
    outcome: Option<Result<T, Error>>,
    reply: oneshot::Sender<Result<T, Error>>,
    permits: OwnedSemaphorePermit,
}

impl<T, F> QueuedWrite for WriteJob<T, F>
where
    T: Send,
    F: FnMut(&Connection) -> Result<T, Error> + Send,
{
    fn apply(&mut self, connection: &Connection) -> bool {
        let outcome = (self.work)(connection);
        let keep = outcome.is_ok();
        self.outcome = Some(outcome);
        keep
    }

    fn answer(self: Box<Self>, committed: Result<(), Error>) {
        let Self { work, outcome, reply, permits: weight } = *self;
        // Released before the reply, so that a caller that has its reply finds the space free.
        drop((work, weight));
        let answer = match (outcome, committed) {
            (Some(Err(own)), _) => Err(own),
            (_, Err(error)) => Err(error),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(Error::Closed),
        };
        // The caller may be gone; the write stays committed.
        drop(reply.send(answer));
    }
}

/// Receives a write's result after the commit.
pub(crate) type WriteReply<T> = oneshot::Receiver<Result<T, Error>>;

/// Sender of writes to the writer thread, which ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct WriteQueue {
    writes: mpsc::Sender<Box<dyn QueuedWrite>>,
    free_permits: Arc<Semaphore>,
    max_permits: u32,
}

impl WriteQueue {
    pub(crate) fn new(writes: NonZeroU16, bytes: usize) -> (Self, mpsc::Receiver<Box<dyn QueuedWrite>>) {
        let (sender, receiver) = mpsc::channel(writes.get().into());
        let grains = u32::try_from(bytes / PERMIT_BYTES).unwrap_or(u32::MAX).max(1);
        let room = Arc::new(Semaphore::new((grains as usize).min(Semaphore::MAX_PERMITS)));
        (Self { writes: sender, free_permits: room, max_permits: grains }, receiver)
    }

    /// Enqueues a new write of about `bytes` bytes, or refuses it when the queue is full. An enqueued write
    /// is applied even if its caller stops waiting.
    pub(crate) fn try_enqueue<T, F>(&self, bytes: usize, work: F) -> Result<WriteReply<T>, Error>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> Result<T, Error> + Send + 'static,
    {
        let room = Arc::clone(&self.free_permits).try_acquire_many_owned(self.permits(bytes));
        let weight = room.map_err(|error| match error {
            TryAcquireError::NoPermits => Error::QueueFull,
            TryAcquireError::Closed => Error::Closed,
        })?;
        let (job, answer) = boxed_job(work, weight);
        self.writes.try_send(job).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Error::QueueFull,
            mpsc::error::TrySendError::Closed(_) => Error::Closed,
        })?;
        Ok(answer)
    }

    /// Enqueues a record of something that has already happened; waits for space instead of being refused.
    pub(crate) async fn enqueue<T, F>(&self, bytes: usize, work: F) -> Result<WriteReply<T>, Error>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> Result<T, Error> + Send + 'static,
    {
        let room = Arc::clone(&self.free_permits).acquire_many_owned(self.permits(bytes)).await;
        let (job, answer) = boxed_job(work, room.map_err(|_| Error::Closed)?);
        self.writes.send(job).await.map_err(|_| Error::Closed)?;
        Ok(answer)
    }

    /// Converts bytes to permits. A write larger than the whole queue is admitted once the queue is empty.
    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX).clamp(1, self.max_permits)
    }
}

fn boxed_job<T, F>(work: F, weight: OwnedSemaphorePermit) -> (Box<dyn QueuedWrite>, WriteReply<T>)
where
    T: Send + 'static,
    F: FnMut(&Connection) -> Result<T, Error> + Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    (Box::new(WriteJob { work, outcome: None, reply, permits: weight }), answer)
}

/// Runs the writer thread until every [`WriteQueue`] is dropped and all queued writes are done.
pub(crate) fn run(
    connection: &Connection,
    mut writes: mpsc::Receiver<Box<dyn QueuedWrite>>,
    log: &WalMonitor,
) {
    log.install_hook(connection);
    while let Some(first) = writes.blocking_recv() {
        let mut group = vec![first];
        while group.len() < MAX_GROUP_WRITES
            && let Ok(write) = writes.try_recv()
        {
            group.push(write);
        }
        commit_and_reply(connection, group);
        log.after_commit(connection);
    }
    log.truncate_at_end(connection);
}

/// Commits a group and replies to it. If the whole group fails, each write is retried alone, so that one
/// write too large for the disk does not fail the others.
fn commit_and_reply(connection: &Connection, mut group: Vec<Box<dyn QueuedWrite>>) {
    match commit_group(connection, &mut group) {
        Err(_) if group.len() > 1 => {
            for write in group {
                commit_and_reply(connection, vec![write]);
            }
        }
        Err(error) => {
            if let Some(write) = group.pop() {
                write.answer(Err(error));
            }
        }
        Ok(()) => {
            for write in group {
                write.answer(Ok(()));
            }
        }
    }
}

fn commit_group(connection: &Connection, group: &mut [Box<dyn QueuedWrite>]) -> Result<(), Error> {
    let execute = |sql: &str| connection.prepare_cached(sql)?.execute([]);
    let all = || -> rusqlite::Result<()> {
        execute("BEGIN IMMEDIATE")?;
        for write in group {
            execute("SAVEPOINT one")?;
            if !write.apply(connection) {
                // Fails when SQLite has rolled back the whole transaction, as it does on a full disk.
                execute("ROLLBACK TO one")?;
            }
            execute("RELEASE one")?;
        }
        execute("COMMIT").map(drop)
    };
    all().map_err(|error| {
        if !connection.is_autocommit() {
            // If even this fails, the next group's BEGIN fails and the rollback is tried again.
            drop(execute("ROLLBACK"));
        }
        error.into()
    })
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
