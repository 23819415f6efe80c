//! Executions under way: by what they can be cancelled, watched and waited for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use belljar_engine::provider::{Flow, Sink, Stream};
use belljar_store::{ExecutionId, TenantName};
use tokio::sync::watch;

use crate::error::Error;
use crate::world::World;

/// What came of an execution: its result object, committed; or why nothing ran.
pub(crate) type Done = Result<Bytes, Error>;

/// All of them.
#[derive(Debug)]
pub(crate) struct Live {
    table: Mutex<HashMap<ExecutionId, Arc<Running>>>,
    count: watch::Sender<usize>,
    closed: AtomicBool,
}

impl Default for Live {
    fn default() -> Self {
        Self { table: Mutex::default(), count: watch::Sender::new(0), closed: AtomicBool::new(false) }
    }
}

/// One execution that waits or runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) id: ExecutionId,
    pub(crate) tenant: TenantName,
    /// What it has written so far, where somebody may want to see that before the end.
    pub(crate) transcript: Option<Transcript>,
    cancel: watch::Sender<bool>,
    done: watch::Sender<Option<Done>>,
}

/// Makes an execution known for as long as this is kept.
#[derive(Debug)]
pub(crate) struct Listed {
    world: Arc<World>,
    id: ExecutionId,
}

impl Live {
    /// A tenant's own; another's is not there.
    pub(crate) fn find(&self, tenant: &TenantName, id: &ExecutionId) -> Option<Arc<Running>> {
        self.lock().get(id).filter(|running| running.tenant == *tenant).cloned()
    }

    /// From now on nothing new begins.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Completes when nothing is under way.
    pub(crate) async fn idle(&self) {
        // The sender is ours, so waiting cannot fail.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    pub(crate) fn cancel_all(&self) {
        self.lock().values().for_each(|running| running.cancel());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ExecutionId, Arc<Running>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listed {
    pub(crate) fn new(world: &Arc<World>, running: &Arc<Running>) -> Self {
        let mut table = world.live.lock();
        table.insert(running.id.clone(), Arc::clone(running));
        world.live.count.send_replace(table.len());
        Self { world: Arc::clone(world), id: running.id.clone() }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut table = self.world.live.lock();
        table.remove(&self.id);
        self.world.live.count.send_replace(table.len());
    }
}

impl Running {
    pub(crate) fn new(id: ExecutionId, tenant: TenantName, watched: bool) -> Arc<Self> {
        Arc::new(Self {
            id,
            tenant,
            transcript: watched.then(Transcript::default),
            cancel: watch::Sender::new(false),
            done: watch::Sender::new(None),
        })
    }

    pub(crate) fn cancel(&self) {
        self.cancel.send_replace(true);
    }

    /// Completes when it is to be cancelled.
    pub(crate) async fn cancelled(&self) {
        let _ = self.cancel.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    pub(crate) fn finish(&self, done: Done) {
        self.done.send_replace(Some(done));
    }

    /// Waits for the end.
    pub(crate) async fn done(&self) -> Done {
        let mut done = self.done.subscribe();
        match done.wait_for(Option::is_some).await.ok().and_then(|done| done.clone()) {
            Some(done) => done,
            None => Err(Error::Internal),
        }
    }
}

/// Cancels an execution when its client goes away.
#[derive(Debug)]
pub(crate) struct Leash(pub(crate) Arc<Running>);

impl Drop for Leash {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Output so far, for any number of viewers, each at its own place. No longer than what the result will keep.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    pieces: Mutex<Vec<(Stream, Bytes)>>,
    length: watch::Sender<usize>,
}

impl Transcript {
    fn push(&self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut pieces = self.lock();
        pieces.push((stream, Bytes::copy_from_slice(bytes)));
        self.length.send_replace(pieces.len());
    }

    /// The piece at a place, if it is there.
    pub(crate) fn piece(&self, place: usize) -> Option<(Stream, Bytes)> {
        self.lock().get(place).cloned()
    }

    /// Completes when there is a piece at this place.
    pub(crate) async fn reaches(&self, place: usize) {
        let _ = self.length.subscribe().wait_for(|length| *length > place).await;
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Stream, Bytes)>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes output into the transcript, where there is one.
#[derive(Debug)]
pub(crate) struct Scribe<'a>(pub(crate) Option<&'a Transcript>);

impl Sink for Scribe<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> Flow {
        if let Some(transcript) = self.0 {
            transcript.push(stream, bytes);
        }
        Flow::Continue
    }

    /// What somebody may have seen cannot be taken back.
    fn restart(&mut self) -> bool {
        self.0.is_none_or(|transcript| transcript.lock().is_empty())
    }
}
