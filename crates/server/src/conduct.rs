//! One execution from its turn to its committed result.
//!
//! ```text
//! enter the gate ─▶ begin: recorded ─▶ run ─▶ finish: committed ─▶ known to whoever waits
//! ```
//!
//! What runs is recorded whatever becomes of the client: let go, it is carried on ([`Carried`]). Where nobody needs to
//! know that it began (no idempotency key, and the client waits), that is recorded only if it takes longer than a
//! moment, and otherwise together with its result. A result is never acknowledged before it is committed.

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

/// What has not ended by then is recorded as running.
const MOMENT: Duration = Duration::from_millis(20);
/// How often a result that could not be committed is tried again, a second apart.
const TRIES: usize = 60;

/// An execution that was admitted.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) admitted: Admitted,
    /// The sandbox in which it runs, if not in a fresh one.
    pub(crate) inside: Option<Used>,
    pub(crate) language: &'static str,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) idempotency: Option<Idempotency>,
    /// Nobody waits for the answer: a failure is kept as a result.
    pub(crate) detached: bool,
    /// Whether output can be followed.
    pub(crate) watched: bool,
    /// What it holds of the memory for requests.
    pub(crate) hold: RequestHold,
}

/// What came of the wish to start.
#[derive(Debug)]
pub(crate) enum Started {
    /// It is under way, as long as it is carried.
    Running(Arc<Running>, Carried),
    /// The same request is under way, or was, under this name.
    Known(ExecutionId),
}

/// Starts a job.
///
/// # Errors
/// Its tenant has too much waiting, its key was used for something else, or it cannot be recorded.
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

/// Work that is done by whoever waits for it, as long as somebody does; let go, it goes on by itself. So what is over in
/// a millisecond is not handed to another thread and back.
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

/// What the store does not know of yet.
#[derive(Debug, Clone, Default)]
struct Unrecorded(Arc<Mutex<Option<NewExecution>>>);

impl Unrecorded {
    fn set(&self, new: NewExecution) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
    }

    /// For whoever records it now.
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
    /// Runs; that it does is recorded when it takes longer than a moment.
    async fn beside(self, entry: Admission, listed: Listed) {
        let (store, unrecorded) = (Arc::clone(&self.world.store), self.unrecorded.clone());
        // What has to wait takes longer for certain.
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

    /// Runs when it is recorded that it will, and only if nobody asked for the same before.
    async fn behind(
        self,
        new: NewExecution,
        entry: Admission,
        listed: Listed,
        tell: oneshot::Sender<Result<Begun, Error>>,
    ) {
        let begun = self.world.store.begin_execution(new).await.map_err(Error::from);
        let fresh = matches!(begun, Ok(Begun::Fresh));
        // Whoever asked may be gone; the execution is known by its key all the same.
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
        // The next one may run while this one's result is written.
        drop((turns, job.hold));
        let end = End { world: &world, running: &running, metadata: &job.metadata, unrecorded };
        match report {
            Ok(report) => end.ran(&report, job.language).await,
            Err(error) => end.did_not_run(error, job.detached).await,
        }
    }

    /// Waits for the turns; nothing where it was cancelled before.
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

/// What is to be done when an execution has ended.
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
                let why = format!("the result cannot be kept: {error}");
                Finished::failed(&self.blank(&why), ended)?
            }
        };
        commit(self.world, self.running, self.unrecorded.take(), finished).await
    }

    /// A client that waits is told, and the same request may come again; for later, the reason is kept as a result.
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

/// Commits a result, and with it that there was an execution, where that is still unrecorded. Where the disk refuses,
/// that is said at once, and the result is tried again behind it.
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
                tracing::error!(execution = %id, %error, "a result could not be committed; trying again");
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
    tracing::error!(execution = %running.id, "a result was lost: it could not be committed");
}

/// Both at once. When the first fails, the second is given up; when the second has ended, the first is of no use.
async fn both(begin: impl Future<Output = Result<(), Error>>, work: impl Future<Output = Done>) -> Done {
    let (mut begin, mut work) = (pin!(begin), pin!(work));
    tokio::select! {
        // The store takes what it is given in order, so the beginning has to be handed in before any end.
        biased;
        begun = &mut begin => {
            begun?;
            work.await
        }
        done = &mut work => done,
    }
}
