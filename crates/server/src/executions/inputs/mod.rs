//! One program with many inputs: each input is an execution of its own.
//!
//! ```text
//! admit: the program ─┬▶ run:    a few inputs at a time, in the tenant's turns ─▶ results, as they finish
//!                     └▶ detach: all recorded as queued ─▶ a few at a time, in the background
//! ```
//!
//! An input enters the run queue when it is one of the next to run. So a request occupies few entries of its tenant's
//! queue, however many inputs it has.

mod bounds;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::body::Bytes;
use belljar_engine::inputs::AdmittedProgram;
use belljar_engine::policy::Verdict;
use belljar_engine::provider::BoxFuture;
use belljar_engine::request::{HostPaths, Input, Request};
use belljar_store::executions::{Idempotency, NewExecution};
use belljar_store::{ExecutionId, Timestamp};
use futures_util::stream::{self, FuturesUnordered};
use futures_util::{FutureExt, StreamExt};
use serde_json::{Map, Value};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::sleep;

use super::admission::Admission;
use super::executor::{StartOutcome, start_entered};
use super::live_executions::{CancelOnDrop, ExecutionResult};
use super::queued_execution::{QueuedExecution, RecordOutcome};
use super::{ExecutionJob, check_quota, language_name, stored_result};
use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::body_memory::{BodyReservation, RequestReservation};
use crate::error::Error;
use crate::share_pool::ShareKind;
use crate::uncancellable::run_uncancellable;
use bounds::{allowed_jobs, check_count, check_metadata, fit_into_memory};

/// Interval at which an input checks again whether its tenant's queue has room.
pub(crate) const QUEUE_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Memory of an execution that is recorded and waits.
const QUEUED_EXECUTION_BYTES: u64 = 4 << 10;
/// Number of executions that are being recorded at the same time.
const RECORDED_AT_ONCE: usize = 64;

/// A request with many inputs.
#[derive(Debug)]
pub(crate) struct InputsRequest {
    /// The request without them.
    pub(crate) request: Request,
    pub(crate) inputs: Vec<Input>,
    pub(crate) idempotency: Option<Idempotency>,
    /// Whether no client waits for the results.
    pub(crate) detached: bool,
}

/// Admitted inputs of one program.
#[derive(Debug)]
pub(crate) struct InputsJob {
    inputs: Vec<Input>,
    /// How many run at the same time.
    jobs: usize,
    shared: Arc<SharedProgram>,
}

/// What all inputs share.
#[derive(Debug)]
struct SharedProgram {
    state: Arc<AppState>,
    caller: Caller,
    program: Arc<AdmittedProgram>,
    language: &'static str,
    metadata: Map<String, Value>,
    idempotency: Option<Idempotency>,
    detached: bool,
    reservation: Arc<RequestReservation>,
}

/// The result of one input.
#[derive(Debug)]
pub(crate) struct InputResult {
    pub(crate) index: u64,
    /// The execution, if there is one.
    pub(crate) id: Option<ExecutionId>,
    pub(crate) result: ExecutionResult,
}

/// The executions of inputs that no client waits for.
#[derive(Debug)]
pub(crate) struct DetachedInputs {
    /// Their ids, in the order of the inputs.
    pub(crate) ids: Vec<ExecutionId>,
    /// Whether the same request was sent before.
    pub(crate) is_repeated: bool,
}

/// Checks a program on behalf of the caller's tenant. Its inputs are checked when they run, and those that are wrong
/// have errors as their results.
pub(crate) async fn admit_inputs(
    state: &Arc<AppState>,
    caller: &Caller,
    wanted: InputsRequest,
    reservation: BodyReservation,
) -> Result<InputsJob, Error> {
    let InputsRequest { mut request, inputs, idempotency, detached } = wanted;
    check_count(inputs.len(), state.settings.max_inputs)?;
    check_metadata(&request.metadata, inputs.len(), state.settings.max_body)?;
    let jobs = allowed_jobs(request.jobs.take(), state.settings.batch_jobs)?;
    let (jobs, more) = fit_into_memory(jobs, request.size(), reservation.bytes(), state.settings.max_body);
    let queued = if detached { inputs.len() as u64 * QUEUED_EXECUTION_BYTES } else { 0 };
    let reservation = Arc::new(reservation.into_larger_request(more + queued)?);
    let (language, metadata) = (language_name(&request)?, request.metadata.clone());
    let (engine, owner) = (Arc::clone(&state.engine), caller.clone());
    let check = state.check_workers.run_check(&caller.tenant, move || {
        let program = engine.admit_program(request, HostPaths::default(), owner.tenancy())?;
        Ok::<_, Error>(program.with_tenant(owner.tenant.as_str()))
    });
    let program = check.await?.map_err(|error| state.error_for(caller.is_admin(), error))?;
    let (state, caller, program) = (Arc::clone(state), caller.clone(), Arc::new(program));
    let shared =
        SharedProgram { state, caller, program, language, metadata, idempotency, detached, reservation };
    Ok(InputsJob { inputs, jobs, shared: Arc::new(shared) })
}

impl InputsJob {
    /// Returns the verdict of the policies on the program.
    pub(crate) fn verdict(&self) -> &Verdict {
        self.shared.program.verdict()
    }

    /// Returns the number of inputs.
    pub(crate) fn count(&self) -> usize {
        self.inputs.len()
    }

    /// Runs all inputs and sends their results as they finish. Once the receiver is gone, nothing more starts, and
    /// what runs is canceled; with an idempotency key it ends, and a repeated request continues.
    pub(crate) async fn run(self, results: mpsc::Sender<InputResult>) {
        let Self { inputs, jobs, shared } = self;
        let mut inputs = (0..).zip(inputs);
        let mut running: FuturesUnordered<BoxFuture<'static, InputResult>> = FuturesUnordered::new();
        loop {
            while running.len() < jobs
                && let Some((index, input)) = inputs.next()
            {
                running.push(Arc::clone(&shared).run_input(index, input).boxed());
            }
            let done = tokio::select! {
                biased;
                // Returning drops the running futures, which cancels their executions.
                () = results.closed() => return,
                done = running.next() => done,
            };
            let Some(done) = done else { return };
            if results.send(done).await.is_err() {
                return;
            }
        }
    }

    /// Records all inputs as queued, and runs them in the background.
    pub(crate) async fn detach(self) -> Result<DetachedInputs, Error> {
        // A client that disconnects must not leave executions recorded that nothing will run.
        run_uncancellable(async move {
            let Self { inputs, jobs, shared } = self;
            let outcomes = shared.record_all(inputs.len() as u64).await?;
            let (turns, mut ids) = (Arc::new(Semaphore::new(jobs)), Vec::with_capacity(inputs.len()));
            let mut queued = Vec::with_capacity(inputs.len());
            for ((index, input), outcome) in (0..).zip(inputs).zip(outcomes) {
                match outcome {
                    RecordOutcome::Known(id) => ids.push(id),
                    RecordOutcome::New(execution) => {
                        ids.push(execution.running.id.clone());
                        queued.push((index, input, execution));
                    }
                }
            }
            let is_repeated = queued.is_empty();
            // All wait at the same time, so that each of them can be canceled at any time.
            tokio::spawn(stream::iter(queued).for_each_concurrent(
                None::<usize>,
                move |(index, input, execution)| {
                    Arc::clone(&shared).run_queued(Arc::clone(&turns), index, input, execution)
                },
            ));
            Ok(DetachedInputs { ids, is_repeated })
        })
        .await
    }
}

impl SharedProgram {
    async fn run_input(self: Arc<Self>, index: u64, input: Input) -> InputResult {
        let mut id = None;
        let result = self.attempt(index, input, &mut id).await;
        InputResult { index, id, result }
    }

    async fn attempt(&self, index: u64, input: Input, id: &mut Option<ExecutionId>) -> ExecutionResult {
        if self.state.live_executions.is_closed() {
            return Err(Error::ShuttingDown);
        }
        let (job, entry) = self.enter(index, input).await?;
        match start_entered(&self.state, &self.caller, job, entry).await? {
            StartOutcome::Running(running, task) => {
                *id = Some(running.id.clone());
                // With an idempotency key, the client can ask again for the result.
                let _canceled = self.idempotency.is_none().then(|| CancelOnDrop(Arc::clone(&running)));
                task.await;
                running.done().await
            }
            StartOutcome::Known(known) => {
                *id = Some(known.clone());
                self.known_result(&known).await
            }
        }
    }

    /// Returns the result of an execution that a repeated request finds.
    async fn known_result(&self, id: &ExecutionId) -> Result<Bytes, Error> {
        match self.state.live_executions.find(&self.caller.tenant, id) {
            Some(running) => running.done().await,
            None => stored_result(&self.state, &self.caller, id).await,
        }
    }

    async fn run_queued(
        self: Arc<Self>,
        turns: Arc<Semaphore>,
        index: u64,
        input: Input,
        execution: QueuedExecution,
    ) {
        let running = Arc::clone(&execution.running);
        let turn = tokio::select! {
            biased;
            () = running.cancelled() => None,
            turn = turns.acquire_owned() => turn.ok(),
        };
        // Thousands may wait above, and few run: only those need the memory of what follows.
        match turn {
            Some(_turn) => self.run_in_turn(index, input, execution).boxed().await,
            None => execution.cancel(&self.state, &self.metadata).boxed().await,
        }
    }

    async fn run_in_turn(&self, index: u64, input: Input, execution: QueuedExecution) {
        let running = Arc::clone(&execution.running);
        let entered = tokio::select! {
            biased;
            () = running.cancelled() => return execution.cancel(&self.state, &self.metadata).await,
            entered = self.enter(index, input) => entered,
        };
        match entered {
            Ok((job, entry)) => execution.run(&self.state, job, entry).await,
            Err(error) => execution.fail(&self.state, &self.metadata, error).await,
        }
    }

    /// Prepares the execution of an input, and enters the run queue as soon as that has room.
    async fn enter(&self, index: u64, input: Input) -> Result<(ExecutionJob, Admission), Error> {
        let Self { state, caller, .. } = self;
        let job = self.job(index, input).await?;
        check_quota(state, caller).await?;
        loop {
            while !state.run_queue.has_room(&caller.tenant) {
                sleep(QUEUE_POLL_INTERVAL).await;
            }
            match Admission::enter(&state.run_queue, caller, &job) {
                // Another request was faster.
                Err(error) if is_queue_full(&error) && caller.quotas.concurrency != Some(0) => {
                    sleep(QUEUE_POLL_INTERVAL).await;
                }
                entered => return Ok((job, entered?)),
            }
        }
    }

    async fn job(&self, index: u64, input: Input) -> Result<ExecutionJob, Error> {
        let admitted = if self.program.is_quick(&input) {
            self.program.with_input(&input)?
        } else {
            let program = Arc::clone(&self.program);
            let checked =
                self.state.check_workers.run_check(&self.caller.tenant, move || program.with_input(&input));
            checked.await??
        };
        Ok(ExecutionJob {
            admitted,
            sandbox: None,
            language: self.language,
            metadata: self.metadata.clone(),
            idempotency: self.key_of(index),
            detached: self.detached,
            keeps_transcript: self.detached,
            reservation: Arc::clone(&self.reservation),
        })
    }

    fn key_of(&self, index: u64) -> Option<Idempotency> {
        let own = |all: &Idempotency| Idempotency { key: all.key.of_input(index), request: all.request };
        self.idempotency.as_ref().map(own)
    }

    /// Records all inputs as queued, or none of them.
    async fn record_all(&self, count: u64) -> Result<Vec<RecordOutcome>, Error> {
        // Another request with the same key is refused before anything of this one is recorded.
        let mut recorded = vec![self.record(0).await?];
        let (failed, mut failure) = (&AtomicBool::new(false), None);
        let others = stream::iter(1..count).map(|index| async move {
            if failed.load(Relaxed) { None } else { Some(self.record(index).await) }
        });
        let mut others = pin!(others.buffered(RECORDED_AT_ONCE));
        // Those that are being recorded when one fails are awaited, too.
        while let Some(outcome) = others.next().await {
            match outcome {
                Some(Ok(outcome)) => recorded.push(outcome),
                Some(Err(error)) => {
                    failed.store(true, Relaxed);
                    failure.get_or_insert(error);
                }
                None => {}
            }
        }
        let Some(error) = failure else { return Ok(recorded) };
        for outcome in recorded {
            if let RecordOutcome::New(execution) = outcome {
                execution.abandon(&self.state, error.clone()).await;
            }
        }
        Err(error)
    }

    async fn record(&self, index: u64) -> Result<RecordOutcome, Error> {
        let created = Timestamp::now();
        QueuedExecution::record(&self.state, &self.caller, |id| NewExecution {
            id,
            tenant: self.caller.tenant.clone(),
            language: self.language.to_owned(),
            metadata: self.metadata.clone(),
            idempotency: self.key_of(index),
            created,
            started: None,
        })
        .await
    }
}

fn is_queue_full(error: &Error) -> bool {
    matches!(error, Error::QueueFull | Error::Overloaded | Error::ShareTaken { kind: ShareKind::Queue, .. })
}
