//! Executions in progress: cancellation, live output and waiting for results.
//!
//! Output that can be followed is stored once, in a [`Transcript`]; other executions have none. A client that
//! waits holds a [`CancelOnDrop`], which cancels the execution when its connection ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use axum::body::Bytes;
use belljar_engine::provider::{Sink, SinkControl, Stream};
use belljar_engine::report::Report;
use belljar_store::{ExecutionId, TenantName};
use tokio::sync::watch;

use crate::authentication::Caller;
use crate::error::Error;
use crate::trace::{AttributeValue, SpanKind, TraceContext, TraceSpan};

/// Maximum number of bytes that a viewer reads at once.
const MAX_READ_BYTES: usize = 64 << 10;

/// The committed JSON result of an execution, or the reason nothing ran.
pub(crate) type ExecutionResult = Result<Bytes, Error>;

/// All executions in progress.
#[derive(Debug)]
pub(crate) struct LiveExecutions {
    table: Mutex<HashMap<ExecutionId, Arc<LiveExecution>>>,
    count: watch::Sender<usize>,
    /// Number of commands in sandboxes that a client waits for.
    commands: watch::Sender<usize>,
    closed: watch::Sender<bool>,
}

impl Default for LiveExecutions {
    fn default() -> Self {
        let (count, commands, closed) =
            (watch::Sender::new(0), watch::Sender::new(0), watch::Sender::new(false));
        Self { table: Mutex::default(), count, commands, closed }
    }
}

/// One queued or running execution.
#[derive(Debug)]
pub(crate) struct LiveExecution {
    pub(crate) id: ExecutionId,
    pub(crate) tenant: TenantName,
    /// Whether an administrator started it, who may see causes on the host.
    pub(crate) by_admin: bool,
    started: SystemTime,
    /// Span of the request that started it, if traces are exported.
    context: Option<TraceContext>,
    /// Output so far, if it can be followed.
    pub(crate) transcript: Option<Transcript>,
    /// Progress message before the execution starts.
    pub(crate) progress: watch::Sender<String>,
    cancel: watch::Sender<bool>,
    done: watch::Sender<Option<ExecutionResult>>,
}

/// Keeps an execution registered until it ends or this is dropped.
#[derive(Debug)]
pub(crate) struct LiveRegistration {
    all: Arc<LiveExecutions>,
    running: Arc<LiveExecution>,
}

impl LiveExecutions {
    /// Returns an execution of this tenant.
    pub(crate) fn find(&self, tenant: &TenantName, id: &ExecutionId) -> Option<Arc<LiveExecution>> {
        self.lock().get(id).filter(|running| running.tenant == *tenant).cloned()
    }

    /// Stops accepting new executions.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Completes once no new executions are accepted.
    pub(crate) async fn closing(&self) {
        // `self` owns the sender, so waiting cannot fail. The same holds below.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Completes when no execution or awaited command is in progress.
    pub(crate) async fn idle(&self) {
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
        let _ = self.commands.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Cancels the executions of a tenant, and returns how many are in progress.
    pub(crate) fn cancel_tenant(&self, tenant: &TenantName) -> usize {
        self.lock()
            .values()
            .filter(|running| running.tenant == *tenant)
            .map(|running| running.cancel())
            .count()
    }

    pub(crate) fn cancel_all(&self) {
        self.lock().values().for_each(|running| running.cancel());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ExecutionId, Arc<LiveExecution>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a command that a client waits for as in progress until dropped.
#[derive(Debug)]
pub(crate) struct AwaitedCommand(Arc<LiveExecutions>);

impl AwaitedCommand {
    pub(crate) fn new(all: &Arc<LiveExecutions>) -> Self {
        all.commands.send_modify(|count| *count += 1);
        Self(Arc::clone(all))
    }
}

impl Drop for AwaitedCommand {
    fn drop(&mut self) {
        self.0.commands.send_modify(|count| *count -= 1);
    }
}

impl LiveRegistration {
    pub(crate) fn new(all: &Arc<LiveExecutions>, running: &Arc<LiveExecution>) -> Self {
        let mut table = all.lock();
        table.insert(running.id.clone(), Arc::clone(running));
        all.count.send_replace(table.len());
        Self { all: Arc::clone(all), running: Arc::clone(running) }
    }

    /// Unregisters the execution, then sends its outcome to all waiters.
    pub(crate) fn end(self, done: ExecutionResult) {
        self.unregister();
        self.running.finish(done);
    }

    fn unregister(&self) {
        let mut table = self.all.lock();
        table.remove(&self.running.id);
        self.all.count.send_replace(table.len());
    }
}

impl Drop for LiveRegistration {
    fn drop(&mut self) {
        self.unregister();
        // If the task was dropped without an outcome, waiters get an error instead of waiting forever.
        self.running.done.send_if_modified(|done| {
            let forgotten = done.is_none();
            done.get_or_insert(Err(Error::Internal));
            forgotten
        });
    }
}

impl LiveExecution {
    pub(crate) fn new(id: ExecutionId, caller: &Caller, watched: bool) -> Arc<Self> {
        Arc::new(Self {
            id,
            tenant: caller.tenant.clone(),
            by_admin: caller.is_admin(),
            started: SystemTime::now(),
            context: caller.context,
            transcript: watched.then(Transcript::default),
            progress: watch::Sender::default(),
            cancel: watch::Sender::new(false),
            done: watch::Sender::new(None),
        })
    }

    /// Returns the span of this execution, which has just ended, including the time it was queued.
    pub(crate) fn span(&self, report: &Report, language: &'static str) -> TraceSpan {
        let (context, parent) = TraceContext::child_of(self.context);
        TraceSpan {
            context,
            parent,
            name: "execution".to_owned(),
            kind: SpanKind::Internal,
            started: self.started,
            ended: SystemTime::now(),
            failed: false,
            attributes: vec![
                ("belljar.execution_id", self.id.to_string().into()),
                ("belljar.tenant", self.tenant.to_string().into()),
                ("belljar.status", report.status.name().into()),
                ("belljar.language", language.into()),
                ("belljar.warm", report.warmth().name().into()),
                ("belljar.duration_ms", AttributeValue::Real(report.duration_ms)),
            ],
        }
    }

    pub(crate) fn cancel(&self) {
        self.cancel.send_replace(true);
    }

    /// Completes when cancellation is requested.
    pub(crate) async fn cancelled(&self) {
        let _ = self.cancel.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    fn finish(&self, done: ExecutionResult) {
        self.done.send_replace(Some(done));
    }

    /// Waits for the outcome.
    pub(crate) async fn done(&self) -> ExecutionResult {
        let mut done = self.done.subscribe();
        match done.wait_for(Option::is_some).await.ok().and_then(|done| done.clone()) {
            Some(done) => done,
            None => Err(Error::Internal),
        }
    }
}

/// Cancels an execution when dropped, which happens when its client disconnects.
#[derive(Debug)]
pub(crate) struct CancelOnDrop(pub(crate) Arc<LiveExecution>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Output so far, for any number of viewers at their own positions. It is no longer than the output in the
/// result, and has little overhead even if a program writes single bytes.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    log: Mutex<TranscriptLog>,
    length: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct TranscriptLog {
    bytes: Vec<u8>,
    /// Runs of bytes: the stream of each, and its end offset.
    marks: Vec<(Stream, usize)>,
}

/// The read position of a viewer.
#[derive(Debug, Default)]
pub(crate) struct ReadPosition {
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

    /// Returns the next bytes after a viewer's position, if there are any.
    pub(crate) fn next(&self, position: &mut ReadPosition) -> Option<(Stream, Vec<u8>)> {
        let log = self.lock();
        while let Some((stream, mark)) = log.marks.get(position.marks) {
            if position.bytes < *mark {
                let end = (*mark).min(position.bytes + MAX_READ_BYTES);
                let bytes = log.bytes[position.bytes..end].to_vec();
                position.bytes = end;
                return Some((*stream, bytes));
            }
            if log.marks.len() == position.marks + 1 {
                return None;
            }
            position.marks += 1;
        }
        None
    }

    /// Completes when there are bytes after a viewer's position.
    pub(crate) async fn wait_beyond(&self, position: &ReadPosition) {
        let _ = self.length.subscribe().wait_for(|length| *length > position.bytes).await;
    }

    fn lock(&self) -> MutexGuard<'_, TranscriptLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes output to the transcript, if there is one, and publishes progress.
#[derive(Debug)]
pub(crate) struct TranscriptSink<'a>(pub(crate) &'a LiveExecution);

impl Sink for TranscriptSink<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> SinkControl {
        if let Some(transcript) = &self.0.transcript {
            transcript.push(stream, bytes);
        }
        SinkControl::Continue
    }

    /// Allows a restart only while the transcript is empty: a viewer may already have seen any output in it.
    fn restart(&mut self) -> bool {
        self.0.transcript.as_ref().is_none_or(|transcript| transcript.lock().bytes.is_empty())
    }

    fn progress(&mut self, what: &str) {
        self.0.progress.send_replace(what.to_owned());
    }
}
