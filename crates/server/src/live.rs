//! Executions under way: by what they can be cancelled, watched and waited for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use axum::body::Bytes;
use belljar_engine::provider::{Flow, Sink, Stream};
use belljar_store::{ExecutionId, TenantName};
use tokio::sync::watch;

use crate::accounts::Caller;
use crate::error::Error;
use crate::trace::Context;
use crate::world::World;

/// The most that a viewer takes at once.
const PIECE: usize = 64 << 10;

/// What came of an execution: its result object, committed; or why nothing ran.
pub(crate) type Done = Result<Bytes, Error>;

/// All of them.
#[derive(Debug)]
pub(crate) struct Live {
    table: Mutex<HashMap<ExecutionId, Arc<Running>>>,
    count: watch::Sender<usize>,
    /// Commands in sandboxes for whose end somebody waits.
    commands: watch::Sender<usize>,
    closed: watch::Sender<bool>,
}

impl Default for Live {
    fn default() -> Self {
        let (count, commands, closed) =
            (watch::Sender::new(0), watch::Sender::new(0), watch::Sender::new(false));
        Self { table: Mutex::default(), count, commands, closed }
    }
}

/// One execution that waits or runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) id: ExecutionId,
    pub(crate) tenant: TenantName,
    pub(crate) started: SystemTime,
    /// The request to which it belongs, where traces are kept.
    pub(crate) context: Option<Context>,
    /// What it has written so far, where somebody may want to see that before the end.
    pub(crate) transcript: Option<Transcript>,
    /// How far things are before it starts.
    pub(crate) progress: watch::Sender<String>,
    cancel: watch::Sender<bool>,
    done: watch::Sender<Option<Done>>,
}

/// Makes an execution known for as long as this is kept.
#[derive(Debug)]
pub(crate) struct Listed {
    world: Arc<World>,
    running: Arc<Running>,
}

impl Live {
    /// A tenant's own; another's is not there.
    pub(crate) fn find(&self, tenant: &TenantName, id: &ExecutionId) -> Option<Arc<Running>> {
        self.lock().get(id).filter(|running| running.tenant == *tenant).cloned()
    }

    /// From now on nothing new begins.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Completes when nothing new begins any more.
    pub(crate) async fn closing(&self) {
        // The sender is ours, so waiting cannot fail; nor below.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Completes when nothing is under way.
    pub(crate) async fn idle(&self) {
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
        let _ = self.commands.subscribe().wait_for(|count| *count == 0).await;
    }

    pub(crate) fn cancel_all(&self) {
        self.lock().values().for_each(|running| running.cancel());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ExecutionId, Arc<Running>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command for whose end somebody waits: it is under way for as long as this is kept.
#[derive(Debug)]
pub(crate) struct Awaited(Arc<World>);

impl Awaited {
    pub(crate) fn new(world: &Arc<World>) -> Self {
        world.live.commands.send_modify(|count| *count += 1);
        Self(Arc::clone(world))
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.0.live.commands.send_modify(|count| *count -= 1);
    }
}

impl Listed {
    pub(crate) fn new(world: &Arc<World>, running: &Arc<Running>) -> Self {
        let mut table = world.live.lock();
        table.insert(running.id.clone(), Arc::clone(running));
        world.live.count.send_replace(table.len());
        Self { world: Arc::clone(world), running: Arc::clone(running) }
    }

    /// It has ended so: first it is no longer under way, then whoever waits is told.
    pub(crate) fn end(self, done: Done) {
        self.leave();
        self.running.finish(done);
    }

    fn leave(&self) {
        let mut table = self.world.live.lock();
        table.remove(&self.running.id);
        self.world.live.count.send_replace(table.len());
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.leave();
        // Whoever waits for a task that is gone is told so, and does not wait for ever.
        self.running.done.send_if_modified(|done| {
            let forgotten = done.is_none();
            done.get_or_insert(Err(Error::Internal));
            forgotten
        });
    }
}

impl Running {
    pub(crate) fn new(id: ExecutionId, caller: &Caller, watched: bool) -> Arc<Self> {
        Arc::new(Self {
            id,
            tenant: caller.tenant.clone(),
            started: SystemTime::now(),
            context: caller.context,
            transcript: watched.then(Transcript::default),
            progress: watch::Sender::default(),
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

    fn finish(&self, done: Done) {
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

/// Output so far, for any number of viewers, each at its own place. No longer than what the result will keep, and with
/// little beside it even where a program writes a byte at a time.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    log: Mutex<Log>,
    length: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Log {
    bytes: Vec<u8>,
    /// Whose the bytes are, up to which.
    marks: Vec<(Stream, usize)>,
}

/// How far a viewer has read.
#[derive(Debug, Default)]
pub(crate) struct Place {
    bytes: usize,
    marks: usize,
}

impl Transcript {
    fn push(&self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut log = self.lock();
        log.bytes.extend_from_slice(bytes);
        let end = log.bytes.len();
        match log.marks.last_mut() {
            Some((last, mark)) if *last == stream => *mark = end,
            _ => log.marks.push((stream, end)),
        }
        self.length.send_replace(end);
    }

    /// What comes next for a viewer, if it is there.
    pub(crate) fn next(&self, place: &mut Place) -> Option<(Stream, Vec<u8>)> {
        let log = self.lock();
        while let Some((stream, mark)) = log.marks.get(place.marks) {
            if place.bytes < *mark {
                let end = (*mark).min(place.bytes + PIECE);
                let bytes = log.bytes[place.bytes..end].to_vec();
                place.bytes = end;
                return Some((*stream, bytes));
            }
            if log.marks.len() == place.marks + 1 {
                return None;
            }
            place.marks += 1;
        }
        None
    }

    /// Completes when there is more than a viewer has read.
    pub(crate) async fn goes_beyond(&self, place: &Place) {
        let _ = self.length.subscribe().wait_for(|length| *length > place.bytes).await;
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes output into the transcript, where there is one, and says how far things are.
#[derive(Debug)]
pub(crate) struct Scribe<'a>(pub(crate) &'a Running);

impl Sink for Scribe<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> Flow {
        if let Some(transcript) = &self.0.transcript {
            transcript.push(stream, bytes);
        }
        Flow::Continue
    }

    /// What somebody may have seen cannot be taken back.
    fn restart(&mut self) -> bool {
        self.0.transcript.as_ref().is_none_or(|transcript| transcript.lock().bytes.is_empty())
    }

    fn progress(&mut self, what: &str) {
        self.0.progress.send_replace(what.to_owned());
    }
}
