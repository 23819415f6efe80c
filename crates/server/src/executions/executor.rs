//! One execution, from its slot to its committed result.
//!
//! ```text
//! run queue ─▶ begin: recorded ─▶ run ─▶ finish: committed ─▶ waiting clients get the result
//! ```
//!
//! An execution is recorded even if its client disconnects: dropping [`SpawnOnDrop`] moves it to its own
//! task. If no client could ask for it before it ends (no idempotency key, and the client waits), its start
//! is recorded only after [`RECORD_DELAY`], otherwise together with its result. With an idempotency key or
//! `"wait": false` it is recorded before it runs.
//!
//! A result is never acknowledged before it is committed. If the disk fails, the client gets that error (507
//! or 503), and the commit is retried.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use belljar_engine::Fault;
use belljar_engine::provider::BoxFuture;
use belljar_engine::report::{Report, Status};
use belljar_store::executions::{BeginResult, ExecutionOutcome, FinishResult, NewExecution};
use belljar_store::{Error as StoreError, ExecutionId, Timestamp};
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio::time::{Duration, sleep};

use super::admission::Admission;
use super::artifacts::take_large_artifacts;
use super::live_executions::{
    CancelOnDrop, ExecutionResult, LiveExecution, LiveRegistration, TranscriptSink,
};
use super::unrecorded_start::UnrecordedStart;
use super::{ExecutionJob, result_json};
use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::error::Error;
use crate::run_queue::RunSlot;

/// Delay after which a running execution is recorded as started.
const RECORD_DELAY: Duration = Duration::from_millis(20);
/// Number of attempts to commit a result after the first failed, one second apart.
const COMMIT_RETRIES: usize = 60;

/// The outcome of starting a job.
#[derive(Debug)]
pub(crate) enum StartOutcome {
    /// The execution is in progress. It advances while the task is awaited, or in its own task once it is
    /// dropped.
    Running(Arc<LiveExecution>, SpawnOnDrop),
    /// An execution of the same request is in progress or has ended.
    Known(ExecutionId),
}

/// Starts a job.
///
/// # Errors
/// The tenant's queue is full, the tenant is being deleted, the idempotency key was used for another request, or
/// the start cannot be recorded.
pub(crate) async fn start(
    state: &Arc<AppState>,
    caller: &Caller,
    job: ExecutionJob,
) -> Result<StartOutcome, Error> {
    if state.live_executions.is_closed() {
        return Err(Error::ShuttingDown);
    }
    let entry = Admission::enter(&state.run_queue, caller, &job)?;
    start_entered(state, caller, job, entry).await
}

/// Starts a job that is in the run queue.
///
/// # Errors
/// The tenant is being deleted, the idempotency key was used for another request, or the start cannot be recorded.
pub(super) async fn start_entered(
    state: &Arc<AppState>,
    caller: &Caller,
    job: ExecutionJob,
    entry: Admission,
) -> Result<StartOutcome, Error> {
    let running = LiveExecution::new(ExecutionId::generate()?, caller, job.keeps_transcript);
    let new = NewExecution {
        id: running.id.clone(),
        tenant: caller.tenant.clone(),
        language: job.language.to_owned(),
        metadata: job.metadata.clone(),
        idempotency: job.idempotency.clone(),
        created: Timestamp::now(),
        started: entry.can_run_now().then(Timestamp::now),
    };
    let begin_first = job.detached || job.idempotency.is_some();
    let listed = LiveRegistration::new(&state.live_executions, &running);
    state.closed_tenants.check(&caller.tenant)?;
    let unrecorded = UnrecordedStart::default();
    let work = ExecutionTask {
        state: Arc::clone(state),
        running: Arc::clone(&running),
        job,
        unrecorded,
        is_queued: false,
    };
    if !begin_first {
        work.unrecorded.set(new);
        return Ok(StartOutcome::Running(running, SpawnOnDrop::new(work.run_then_record(entry, listed))));
    }
    let (sender, receiver) = oneshot::channel();
    tokio::spawn(work.record_then_run(new, entry, listed, sender));
    match receiver.await.map_err(|_| Error::Internal)?? {
        BeginResult::Fresh => Ok(StartOutcome::Running(running, SpawnOnDrop::default())),
        BeginResult::InProgress(id) | BeginResult::Done(id) => Ok(StartOutcome::Known(id)),
        BeginResult::Conflict => Err(Error::IdempotencyConflict),
    }
}

/// Runs a job without an idempotency key, and returns its result. Dropping the future cancels it.
pub(crate) async fn run_to_end(state: &Arc<AppState>, caller: &Caller, job: ExecutionJob) -> ExecutionResult {
    match start(state, caller, job).await? {
        StartOutcome::Running(running, task) => {
            let execution = CancelOnDrop(running);
            task.await;
            execution.0.done().await
        }
        // Only requests with an idempotency key can be known.
        StartOutcome::Known(_) => Err(Error::Internal),
    }
}

/// A task that runs inline while it is awaited, and is spawned when dropped. So an execution that takes a
/// millisecond is not handed to another thread and back.
#[derive(Default)]
pub(crate) struct SpawnOnDrop(Option<BoxFuture<'static, ()>>);

impl SpawnOnDrop {
    fn new(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(Box::pin(work)))
    }
}

impl Future for SpawnOnDrop {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(work) = &mut self.0 {
            ready!(work.as_mut().poll(cx));
            self.0 = None;
        }
        Poll::Ready(())
    }
}

impl Drop for SpawnOnDrop {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            tokio::spawn(work);
        }
    }
}

impl fmt::Debug for SpawnOnDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpawnOnDrop")
    }
}

pub(super) struct ExecutionTask {
    pub(super) state: Arc<AppState>,
    pub(super) running: Arc<LiveExecution>,
    pub(super) job: ExecutionJob,
    pub(super) unrecorded: UnrecordedStart,
    /// Whether it is recorded as queued, even if it need not wait.
    pub(super) is_queued: bool,
}

impl ExecutionTask {
    /// Runs, and records the start only if the execution is still running after a moment.
    async fn run_then_record(self, entry: Admission, listed: LiveRegistration) {
        let (store, unrecorded) = (Arc::clone(&self.state.store), self.unrecorded.clone());
        // An execution that must wait takes longer than a moment in any case.
        let moment = if entry.can_run_now() { RECORD_DELAY } else { Duration::ZERO };
        let begin = async move {
            sleep(moment).await;
            match unrecorded.take() {
                Some(new) => store.begin_execution(new).await.map(drop).map_err(Error::from),
                None => Ok(()),
            }
        };
        listed.end(run_while_recording(begin, self.perform(entry)).await);
    }

    /// Records the start, then runs, unless the same request was recorded before.
    async fn record_then_run(
        self,
        new: NewExecution,
        entry: Admission,
        listed: LiveRegistration,
        sender: oneshot::Sender<Result<BeginResult, Error>>,
    ) {
        let begun = self.state.store.begin_execution(new).await.map_err(Error::from);
        let fresh = matches!(begun, Ok(BeginResult::Fresh));
        // If the client is gone, it can still find the execution by its idempotency key.
        let _ = sender.send(begun);
        if fresh {
            listed.end(self.perform(entry).await);
        }
    }

    pub(super) async fn perform(self, entry: Admission) -> ExecutionResult {
        let Some(turns) = self.wait_for_slots(entry).await? else {
            let Self { state, running, job, unrecorded, .. } = &self;
            let end =
                ExecutionEnd { state, running, metadata: &job.metadata, unrecorded: unrecorded.clone() };
            return end.finish_canceled().await;
        };
        let Self { state, running, job, unrecorded, .. } = self;
        let mut sink = TranscriptSink(&running);
        let (id, cancel) = (running.id.to_string(), Box::pin(running.cancelled()));
        let report = match &job.sandbox {
            None => state.engine.execute(id, job.admitted, &mut sink, cancel).await.map_err(Error::from),
            Some(sandbox) => {
                let (living, packages) = (&*sandbox.living, &sandbox.packages);
                let run =
                    state.engine.execute_in_sandbox(living, packages, id, job.admitted, &mut sink, cancel);
                let ran = run.await;
                ran.inspect(|report| sandbox.add_execution_cpu(report)).map_err(Error::from)
            }
        };
        // Free the slots first, so that the next execution runs while this result is written.
        drop((turns, job.reservation));
        let end = ExecutionEnd { state: &state, running: &running, metadata: &job.metadata, unrecorded };
        match report {
            Ok(report) => end.finish_run(report, job.language).await,
            Err(error) => end.finish_failed(error, job.detached).await,
        }
    }

    /// Waits for the slots. Returns `None` if the execution is canceled first.
    async fn wait_for_slots(&self, entry: Admission) -> Result<Option<Vec<RunSlot>>, Error> {
        let is_now = entry.can_run_now();
        let turns = tokio::select! {
            biased;
            turns = entry.wait_for_slots(&self.state.run_queue) => turns?,
            () = self.running.cancelled() => return Ok(None),
        };
        if is_now && !self.is_queued {
            return Ok(Some(turns));
        }
        match self.unrecorded.take() {
            Some(new) => self.unrecorded.set(NewExecution { started: Some(Timestamp::now()), ..new }),
            None => {
                let LiveExecution { tenant, id, .. } = &*self.running;
                self.state.store.start_execution(tenant, id, Timestamp::now()).await?;
            }
        }
        Ok(Some(turns))
    }
}

/// Finishes an execution after it ran or failed to run.
pub(super) struct ExecutionEnd<'a> {
    pub(super) state: &'a Arc<AppState>,
    pub(super) running: &'a Arc<LiveExecution>,
    pub(super) metadata: &'a Map<String, Value>,
    pub(super) unrecorded: UnrecordedStart,
}

impl ExecutionEnd<'_> {
    async fn finish_run(self, mut report: Report, language: &'static str) -> ExecutionResult {
        self.state.metrics.ran(&report, language);
        if let Some(tracer) = &self.state.tracer {
            tracer.send(self.running.span(&report, language));
        }
        let ended = Timestamp::now();
        let large = take_large_artifacts(&mut report, self.state.settings.inline_artifact_bytes);
        let finished = match ExecutionOutcome::from_report(&report, ended) {
            Ok(finished) => finished.with_artifacts(large),
            Err(error) => {
                let why = format!("cannot store the result: {error}");
                ExecutionOutcome::failed_to_start(&self.blank(Status::Failed, Some(&why)), ended)?
            }
        };
        commit(self.state, self.running, self.unrecorded.take(), finished).await
    }

    /// Stores that it was canceled before it started.
    pub(super) async fn finish_canceled(self) -> ExecutionResult {
        let result = self.blank(Status::Cancelled, None);
        let finished = ExecutionOutcome::canceled_before_start(&result, Timestamp::now())?;
        commit(self.state, self.running, self.unrecorded.take(), finished).await
    }

    /// Returns the error to a waiting client, which may retry the request. For a detached execution, stores
    /// the error.
    pub(super) async fn finish_failed(self, error: Error, detached: bool) -> ExecutionResult {
        let LiveExecution { tenant, id, .. } = &**self.running;
        tracing::warn!(execution = %id, code = ?error.code(), detail = %error, "nothing ran");
        let error = self.state.error_for(self.running.by_admin, error);
        if detached {
            let result = self.blank(Status::Failed, Some(&error.message()));
            let finished = ExecutionOutcome::failed_to_start(&result, Timestamp::now())?;
            return commit(self.state, self.running, self.unrecorded.take(), finished).await;
        }
        if self.unrecorded.take().is_none() {
            self.state.store.abandon_execution(tenant, id).await?;
        }
        Err(error)
    }

    fn blank(&self, status: Status, error: Option<&str>) -> Value {
        result_json::blank_result(&self.running.id, status, error, self.metadata)
    }
}

/// Commits a result, together with the start if that is unrecorded. If the disk fails, the error is returned
/// at once and the commit is retried in the background.
async fn commit(
    state: &Arc<AppState>,
    running: &Arc<LiveExecution>,
    mut unrecorded: Option<NewExecution>,
    finished: ExecutionOutcome,
) -> ExecutionResult {
    let json = Bytes::copy_from_slice(finished.json().as_bytes());
    let id = &running.id;
    match write_result(state, running, &mut unrecorded, &finished).await {
        Ok(_) => {
            state.retention_trigger.add(finished.size());
            Ok(json)
        }
        Err(error) => {
            if error.fault() != Fault::Caller && !matches!(error, StoreError::Closed) {
                tracing::error!(execution = %id, %error, "cannot commit a result; retrying");
                tokio::spawn(retry_commit(Arc::clone(state), Arc::clone(running), unrecorded, finished));
            }
            Err(error.into())
        }
    }
}

/// Writes a result. Its large artifacts come first, each in writes of its own, between which others are written;
/// for them, the start must be recorded.
async fn write_result(
    state: &AppState,
    running: &LiveExecution,
    unrecorded: &mut Option<NewExecution>,
    finished: &ExecutionOutcome,
) -> Result<FinishResult, StoreError> {
    let (store, LiveExecution { tenant, id, .. }) = (&state.store, running);
    if !finished.artifacts().is_empty() {
        if let Some(new) = unrecorded.clone() {
            store.begin_execution(new).await?;
            *unrecorded = None;
        }
        store.add_artifacts(tenant, id, finished.artifacts()).await?;
    }
    match unrecorded.clone() {
        Some(new) => store.record_execution(new, finished.clone()).await,
        None => store.finish_execution(tenant, id, finished.clone()).await,
    }
}

async fn retry_commit(
    state: Arc<AppState>,
    running: Arc<LiveExecution>,
    mut unrecorded: Option<NewExecution>,
    finished: ExecutionOutcome,
) {
    for _ in 0..COMMIT_RETRIES {
        sleep(Duration::from_secs(1)).await;
        match write_result(&state, &running, &mut unrecorded, &finished).await {
            // Not found: the execution or its tenant was deleted meanwhile.
            Ok(_) | Err(StoreError::NotFound(_)) => return,
            Err(_) => {}
        }
    }
    tracing::error!(execution = %running.id, "lost a result: cannot commit it");
}

/// Runs both futures. If `begin` fails, `work` is dropped; if `work` ends first, `begin` is dropped.
async fn run_while_recording(
    begin: impl Future<Output = Result<(), Error>>,
    work: impl Future<Output = ExecutionResult>,
) -> ExecutionResult {
    let (mut begin, mut work) = (pin!(begin), pin!(work));
    tokio::select! {
        // The store processes writes in order, so the start must be submitted before the end.
        biased;
        begun = &mut begin => {
            begun?;
            work.await
        }
        done = &mut work => done,
    }
}
