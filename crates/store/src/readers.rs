//! Reader threads, each with its own connection that cannot write.
//!
//! Every query has a timeout.

use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;

/// SQLite VM instructions between two checks of the deadline: tens of microseconds.
const DEADLINE_CHECK_STEPS: i32 = 1_000;

pub(crate) type ReadJob = Box<dyn FnOnce(&Connection) + Send>;

/// Sender of reads to the reader threads, which end when it is dropped.
#[derive(Debug)]
pub(crate) struct ReaderPool {
    reads: mpsc::Sender<ReadJob>,
}

/// Receiver of reads, shared by the threads.
pub(crate) type ReadReceiver = Arc<Mutex<mpsc::Receiver<ReadJob>>>;

impl ReaderPool {
    pub(crate) fn new(reads: NonZeroU16) -> (Self, ReadReceiver) {
        let (sender, receiver) = mpsc::channel(reads.get().into());
        (Self { reads: sender }, Arc::new(Mutex::new(receiver)))
    }

    pub(crate) async fn read<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let read: ReadJob = Box::new(move |connection| {
            // The caller is gone, so skip the query.
            if !reply.is_closed() {
                drop(reply.send(work(connection)));
            }
        });
        self.reads.try_send(read).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Error::QueueFull,
            mpsc::error::TrySendError::Closed(_) => Error::Closed,
        })?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

/// Runs a reader thread.
pub(crate) fn run(connection: &Connection, waiting: &ReadReceiver, timeout: Duration) {
    while let Some(read) = next_read(waiting) {
        let deadline = Instant::now() + timeout;
        // Only fails on a connection that this process does not own.
        drop(connection.progress_handler(DEADLINE_CHECK_STEPS, Some(move || Instant::now() > deadline)));
        read(connection);
    }
}

/// Takes the next read. Threads that wait for the mutex wait for work.
fn next_read(waiting: &ReadReceiver) -> Option<ReadJob> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv()
}
