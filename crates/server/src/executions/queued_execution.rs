//! An execution that is recorded as queued before it enters the run queue: one of many that a client does not wait
//! for.

use std::sync::Arc;

use belljar_store::ExecutionId;
use belljar_store::executions::{BeginResult, NewExecution};
use serde_json::{Map, Value};

use super::ExecutionJob;
use super::admission::Admission;
use super::executor::{ExecutionEnd, ExecutionTask};
use super::live_executions::{LiveExecution, LiveRegistration};
use super::unrecorded_start::UnrecordedStart;
use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::error::Error;

/// An execution that is recorded as queued.
#[derive(Debug)]
pub(super) struct QueuedExecution {
    pub(super) running: Arc<LiveExecution>,
    listed: LiveRegistration,
}

/// Result of recording an execution.
#[derive(Debug)]
pub(super) enum RecordOutcome {
    /// It is recorded, and has to run.
    New(QueuedExecution),
    /// The same request was recorded before, as this execution.
    Known(ExecutionId),
}

impl QueuedExecution {
    /// Records an execution. `new` makes it from the id.
    pub(super) async fn record(
        state: &Arc<AppState>,
        caller: &Caller,
        new: impl FnOnce(ExecutionId) -> NewExecution,
    ) -> Result<RecordOutcome, Error> {
        let running = LiveExecution::new(ExecutionId::generate()?, caller, true);
        let new = new(running.id.clone());
        let listed = LiveRegistration::new(&state.live_executions, &running);
        state.closed_tenants.check(&caller.tenant)?;
        match state.store.begin_execution(new).await? {
            BeginResult::Fresh => Ok(RecordOutcome::New(Self { running, listed })),
            BeginResult::InProgress(id) | BeginResult::Done(id) => Ok(RecordOutcome::Known(id)),
            BeginResult::Conflict => Err(Error::IdempotencyConflict),
        }
    }

    /// Runs a job that is in the run queue.
    pub(super) async fn run(self, state: &Arc<AppState>, job: ExecutionJob, entry: Admission) {
        let (state, running, unrecorded) = (Arc::clone(state), self.running, UnrecordedStart::default());
        let task = ExecutionTask { state, running, job, unrecorded, is_queued: true };
        self.listed.end(task.perform(entry).await);
    }

    /// Deletes what was recorded, which frees its idempotency key.
    pub(super) async fn abandon(self, state: &Arc<AppState>, error: Error) {
        let LiveExecution { tenant, id, .. } = &*self.running;
        if let Err(failure) = state.store.abandon_execution(tenant, id).await {
            tracing::error!(execution = %id, error = %failure, "cannot delete an execution that will not run");
        }
        self.listed.end(Err(error));
    }

    /// Stores an error as the result.
    pub(super) async fn fail(self, state: &Arc<AppState>, metadata: &Map<String, Value>, error: Error) {
        let done = end(state, &self.running, metadata).finish_failed(error, true).await;
        self.listed.end(done);
    }

    /// Stores that it was canceled.
    pub(super) async fn cancel(self, state: &Arc<AppState>, metadata: &Map<String, Value>) {
        let done = end(state, &self.running, metadata).finish_canceled().await;
        self.listed.end(done);
    }
}

fn end<'a>(
    state: &'a Arc<AppState>,
    running: &'a Arc<LiveExecution>,
    metadata: &'a Map<String, Value>,
) -> ExecutionEnd<'a> {
    ExecutionEnd { state, running, metadata, unrecorded: UnrecordedStart::default() }
}
