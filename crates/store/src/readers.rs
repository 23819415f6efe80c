//! A few threads read, each with a connection of its own that cannot write.

use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;

/// Steps of SQLite's machine between two looks at the clock: some tens of microseconds.
const STEPS: i32 = 1_000;

pub(crate) type Read = Box<dyn FnOnce(&Connection) + Send>;

/// The way to the readers. Their threads end when it is gone.
#[derive(Debug)]
pub(crate) struct Readers {
    reads: mpsc::Sender<Read>,
}

/// The other end, shared by the threads.
pub(crate) type Waiting = Arc<Mutex<mpsc::Receiver<Read>>>;

impl Readers {
    pub(crate) fn new(reads: NonZeroU16) -> (Self, Waiting) {
        let (sender, receiver) = mpsc::channel(reads.get().into());
        (Self { reads: sender }, Arc::new(Mutex::new(receiver)))
    }

    pub(crate) async fn read<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let read: Read = Box::new(move |connection| {
            // Nobody to read for: a client that is gone costs nothing.
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

/// A reader's thread.
pub(crate) fn run(connection: &Connection, waiting: &Waiting, timeout: Duration) {
    while let Some(read) = next(waiting) {
        let deadline = Instant::now() + timeout;
        // Only fails on a connection that is somebody else's.
        drop(connection.progress_handler(STEPS, Some(move || Instant::now() > deadline)));
        read(connection);
    }
}

/// Threads that wait for the lock wait for work.
fn next(waiting: &Waiting) -> Option<Read> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv()
}
