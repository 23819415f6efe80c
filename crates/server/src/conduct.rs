//! One execution, from its slot to its committed result.
//!
//! ```text
//! run queue ─▶ begin: recorded ─▶ run ─▶ finish: committed ─▶ waiting clients get the result
//! ```
//!
//! An execution is recorded even if its client disconnects: dropping [`Carried`] moves it to its own task. If
//! no client could ask for it before it ends (no idempotency key, and the client waits), its start is
//! recorded only after [`MOMENT`], otherwise together with its result. A result is never acknowledged before
//! it is committed.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use belljar_engine::Fault;
use belljar_engine::admit::Admitted;
use belljar_engine::provider::BoxFuture;
use belljar_engine::report::Report;
use belljar_store::executions::{Begun, Finish, Finished, Idempotency, NewExecution, Status};
use belljar_store::{Error as StoreError, ExecutionId, Timestamp};
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio::time::{Duration, sleep};

use crate::accounts::Caller;
use crate::admission::Admission;
use crate::body::RequestHold;
use crate::error::Error;
use crate::gate::Turn;
use crate::live::{Done, Listed, Running, Scribe};
use crate::object;
use crate::sandboxes::Used;
use crate::world::World;

/// Delay after which a running execution is recorded as started.
const MOMENT: Duration = Duration::from_millis(20);
/// Number of attempts to commit a result after the first failed, one second apart.
const TRIES: usize = 60;

/// An admitted execution.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) admitted: Admitted,
    /// The sandbox to run in; `None` for a fresh one.
    pub(crate) inside: Option<Used>,
    pub(crate) language: &'static str,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) idempotency: Option<Idempotency>,
    /// No client waits for the answer, so a failure is stored as a result.
    pub(crate) detached: bool,
    /// Whether output can be followed.
    pub(crate) watched: bool,
    /// Memory reserved for the request.
    pub(crate) hold: RequestHold,
}

/// The outcome of starting a job.
#[derive(Debug)]
pub(crate) enum Started {
    /// The execution is in progress. It advances while the task is awaited, or in its own task once it is
    /// dropped.
    Running(Arc<Running>, Carried),
    /// An execution of the same request is in progress or has ended.
    Known(ExecutionId),
}

/// Starts a job.
///
/// # Errors
/// The tenant's queue is full, the idempotency key was used for another request, or the start cannot be
/// recorded.
pub(crate) async fn start(world: &Arc<World>, caller: &Caller, job: Job) -> Result<Started, Error> {
    if world.live.is_closed() {
        return Err(Error::ShuttingDown);
    }
    let entry = Admission::enter(world, caller, &job)?;
    let running = Running::new(ExecutionId::generate()?, caller, job.watched);
    let new = NewExecution {
        id: running.id.clone(),
        tenant: caller.tenant.clone(),
        language: job.language.to_owned(),
        metadata: job.metadata.clone(),
        idempotency: job.idempotency.clone(),
        created: Timestamp::now(),
        started: entry.is_now().then(Timestamp::now),
    };
    let begin_first = job.detached || job.idempotency.is_some();
    let listed = Listed::new(world, &running);
    let unrecorded = Unrecorded::default();
    let work = Work { world: Arc::clone(world), running: Arc::clone(&running), job, unrecorded };
    if !begin_first {
        work.unrecorded.set(new);
        return Ok(Started::Running(running, Carried::new(work.beside(entry, listed))));
    }
    let (tell, told) = oneshot::channel();
    tokio::spawn(work.behind(new, entry, listed, tell));
    match told.await.map_err(|_| Error::Internal)?? {
        Begun::Fresh => Ok(Started::Running(running, Carried::default())),
        Begun::InProgress(id) | Begun::Done(id) => Ok(Started::Known(id)),
        Begun::Conflict => Err(Error::IdempotencyConflict),
    }
}

/// A task that runs inline while it is awaited, and is spawned when dropped. So an execution that takes a
/// millisecond is not handed to another thread and back.
#[derive(Default)]
pub(crate) struct Carried(Option<BoxFuture<'static, ()>>);

impl Carried {
    fn new(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(Box::pin(work)))
    }
}

impl Future for Carried {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(work) = &mut self.0 {
            ready!(work.as_mut().poll(cx));
            self.0 = None;
        }
        Poll::Ready(())
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            tokio::spawn(work);
        }
    }
}

impl fmt::Debug for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Carried")
    }
}

/// The start of an execution that is not yet recorded in the store.
#[derive(Debug, Clone, Default)]
struct Unrecorded(Arc<Mutex<Option<NewExecution>>>);

impl Unrecorded {
    fn set(&self, new: NewExecution) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
    }

    /// Returns the start, for the caller to record.
    fn take(&self) -> Option<NewExecution> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

struct Work {
    world: Arc<World>,
    running: Arc<Running>,
    job: Job,
    unrecorded: Unrecorded,
}

impl Work {
    /// Runs, and records the start only if the execution is still running after a moment.
    async fn beside(self, entry: Admission, listed: Listed) {
        let (store, unrecorded) = (Arc::clone(&self.world.store), self.unrecorded.clone());
        // An execution that must wait takes longer than a moment in any case.
        let moment = if entry.is_now() { MOMENT } else { Duration::ZERO };
        let begin = async move {
            sleep(moment).await;
            match unrecorded.take() {
                Some(new) => store.begin_execution(new).await.map(drop).map_err(Error::from),
                None => Ok(()),
            }
        };
        listed.end(both(begin, self.perform(entry)).await);
    }

    /// Records the start, then runs, unless the same request was recorded before.
    async fn behind(
        self,
        new: NewExecution,
        entry: Admission,
        listed: Listed,
        tell: oneshot::Sender<Result<Begun, Error>>,
    ) {
        let begun = self.world.store.begin_execution(new).await.map_err(Error::from);
        let fresh = matches!(begun, Ok(Begun::Fresh));
        // If the client is gone, it can still find the execution by its idempotency key.
        let _ = tell.send(begun);
        if fresh {
            listed.end(self.perform(entry).await);
        }
    }

    async fn perform(self, entry: Admission) -> Done {
        let Some(turns) = self.turns(entry).await? else {
            let result = self.blank(Status::Cancelled, None);
            let finished = Finished::cancelled(&result, Timestamp::now())?;
            return commit(&self.world, &self.running, self.unrecorded.take(), finished).await;
        };
        let Self { world, running, job, unrecorded } = self;
        let mut scribe = Scribe(&running);
        let (id, cancel) = (running.id.to_string(), Box::pin(running.cancelled()));
        let report = match &job.inside {
            None => world.engine.execute(id, job.admitted, &mut scribe, cancel).await.map_err(Error::from),
            Some(sandbox) => {
                let living = &*sandbox.living;
                let ran = world.engine.execute_inside(living, id, job.admitted, &mut scribe, cancel).await;
                ran.inspect(|report| sandbox.ran(report)).map_err(Error::from)
            }
        };
        // Free the slots first, so that the next execution runs while this result is written.
        drop((turns, job.hold));
        let end = End { world: &world, running: &running, metadata: &job.metadata, unrecorded };
        match report {
            Ok(report) => end.ran(&report, job.language).await,
            Err(error) => end.did_not_run(error, job.detached).await,
        }
    }

    /// Waits for the slots. Returns `None` if the execution is canceled first.
    async fn turns(&self, entry: Admission) -> Result<Option<Vec<Turn>>, Error> {
        let is_now = entry.is_now();
        let turns = tokio::select! {
            biased;
            turns = entry.turns(&self.world) => turns?,
            () = self.running.cancelled() => return Ok(None),
        };
        if is_now {
            return Ok(Some(turns));
        }
        match self.unrecorded.take() {
            Some(new) => self.unrecorded.set(NewExecution { started: Some(Timestamp::now()), ..new }),
            None => {
                let Running { tenant, id, .. } = &*self.running;
                self.world.store.start_execution(tenant, id, Timestamp::now()).await?;
            }
        }
        Ok(Some(turns))
    }

    fn blank(&self, status: Status, error: Option<&str>) -> Value {
        object::blank(&self.running.id, status, error, &self.job.metadata)
    }
}

/// Finishes an execution after it ran or failed to run.
struct End<'a> {
    world: &'a Arc<World>,
    running: &'a Arc<Running>,
    metadata: &'a Map<String, Value>,
    unrecorded: Unrecorded,
}

impl End<'_> {
    async fn ran(self, report: &Report, language: &'static str) -> Done {
        self.world.meters.ran(report, language);
        if let Some(tracer) = &self.world.tracer {
            tracer.ran(self.running, report, language);
        }
        let ended = Timestamp::now();
        let finished = match Finished::report(report, ended) {
            Ok(finished) => finished,
            Err(error) => {
                let why = format!("cannot store the result: {error}");
                Finished::failed(&self.blank(&why), ended)?
            }
        };
        commit(self.world, self.running, self.unrecorded.take(), finished).await
    }

    /// Returns the error to a waiting client, which may retry the request. For a detached execution, stores
    /// the error.
    async fn did_not_run(self, error: Error, detached: bool) -> Done {
        let Running { tenant, id, .. } = &**self.running;
        tracing::warn!(execution = %id, code = ?error.code(), detail = %error, "nothing ran");
        if detached {
            let finished = Finished::failed(&self.blank(&error.message()), Timestamp::now())?;
            return commit(self.world, self.running, self.unrecorded.take(), finished).await;
        }
        if self.unrecorded.take().is_none() {
            self.world.store.abandon_execution(tenant, id).await?;
        }
        Err(error)
    }

    fn blank(&self, why: &str) -> Value {
        object::blank(&self.running.id, Status::Failed, Some(why), self.metadata)
    }
}

/// Commits a result, together with the start if that is unrecorded. If the disk fails, the error is returned
/// at once and the commit is retried in the background.
async fn commit(
    world: &Arc<World>,
    running: &Arc<Running>,
    unrecorded: Option<NewExecution>,
    finished: Finished,
) -> Done {
    let json = Bytes::copy_from_slice(finished.json().as_bytes());
    let id = &running.id;
    match put(world, running, unrecorded.clone(), finished.clone()).await {
        Ok(_) => {
            world.written.add(json.len());
            Ok(json)
        }
        Err(error) => {
            if error.fault() != Fault::Caller && !matches!(error, StoreError::Closed) {
                tracing::error!(execution = %id, %error, "cannot commit a result; retrying");
                tokio::spawn(try_again(Arc::clone(world), Arc::clone(running), unrecorded, finished));
            }
            Err(error.into())
        }
    }
}

async fn put(
    world: &World,
    running: &Running,
    unrecorded: Option<NewExecution>,
    finished: Finished,
) -> Result<Finish, StoreError> {
    match unrecorded {
        Some(new) => world.store.record_execution(new, finished).await,
        None => world.store.finish_execution(&running.tenant, &running.id, finished).await,
    }
}

async fn try_again(
    world: Arc<World>,
    running: Arc<Running>,
    unrecorded: Option<NewExecution>,
    finished: Finished,
) {
    for _ in 0..TRIES {
        sleep(Duration::from_secs(1)).await;
        if put(&world, &running, unrecorded.clone(), finished.clone()).await.is_ok() {
            return;
        }
    }
    tracing::error!(execution = %running.id, "lost a result: cannot commit it");
}

/// Runs both futures. If `begin` fails, `work` is dropped; if `work` ends first, `begin` is dropped.
async fn both(begin: impl Future<Output = Result<(), Error>>, work: impl Future<Output = Done>) -> Done {
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
