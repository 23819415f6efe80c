//! One execution from its turn to its committed result.
//!
//! ```text
//! enter the gate ─▶ begin: recorded ─▶ run ─▶ finish: committed ─▶ known to whoever waits
//! ```
//!
//! All of it happens in a task of its own, so that what runs is recorded whatever becomes of the client. Where nobody
//! needs to know that it began (no idempotency key, and the client waits) that record is written beside the run; a
//! result is never acknowledged before it is committed.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use axum::body::Bytes;
use belljar_engine::Fault;
use belljar_engine::admit::Admitted;
use belljar_engine::report::Report;
use belljar_store::executions::{Begun, Finished, Idempotency, NewExecution, Status};
use belljar_store::{Error as StoreError, ExecutionId, Timestamp};
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio::time::{Duration, sleep};

use crate::accounts::Caller;
use crate::body::Share;
use crate::error::Error;
use crate::gate::{Entry, Turn};
use crate::live::{Done, Listed, Running, Scribe};
use crate::object;
use crate::sandboxes::Used;
use crate::world::World;

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
    /// What it takes of the memory for bodies.
    pub(crate) share: Share,
}

/// What came of the wish to start.
#[derive(Debug)]
pub(crate) enum Started {
    /// It is under way.
    Running(Arc<Running>),
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
    let entry = match &job.inside {
        None => world.gate.enter(&caller.tenant, caller.quotas.concurrency)?,
        // It has what it needs of the host already; only its order matters.
        Some(sandbox) => sandbox.gate.enter(&caller.tenant, None)?,
    };
    let running = Running::new(ExecutionId::generate()?, caller.tenant.clone(), job.watched);
    let new = NewExecution {
        id: running.id.clone(),
        tenant: caller.tenant.clone(),
        language: job.language.to_owned(),
        metadata: job.metadata.clone(),
        idempotency: job.idempotency.clone(),
        created: Timestamp::now(),
        started: matches!(entry, Entry::Now(_)).then(Timestamp::now),
    };
    let begin_first = job.detached || job.idempotency.is_some();
    let listed = Listed::new(world, &running);
    let work = Work { world: Arc::clone(world), running: Arc::clone(&running), job };
    if !begin_first {
        tokio::spawn(async move { work.beside(new, entry, listed).await });
        return Ok(Started::Running(running));
    }
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move { work.behind(new, entry, listed, tell).await });
    match told.await.map_err(|_| Error::Internal)?? {
        Begun::Fresh => Ok(Started::Running(running)),
        Begun::InProgress(id) | Begun::Done(id) => Ok(Started::Known(id)),
        Begun::Conflict => Err(Error::IdempotencyConflict),
    }
}

struct Work {
    world: Arc<World>,
    running: Arc<Running>,
    job: Job,
}

impl Work {
    /// Runs while it is being recorded that it does.
    async fn beside(self, new: NewExecution, entry: Entry, listed: Listed) {
        let store = Arc::clone(&self.world.store);
        let begin = async move { store.begin_execution(new).await.map_err(Error::from) };
        listed.end(both(begin, self.perform(entry)).await);
    }

    /// Runs when it is recorded that it will, and only if nobody asked for the same before.
    async fn behind(
        self,
        new: NewExecution,
        entry: Entry,
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

    async fn perform(self, entry: Entry) -> Done {
        let Some(turn) = self.turn(entry).await? else {
            let result = self.blank(Status::Cancelled, None);
            return self.commit(Finished::cancelled(&result, Timestamp::now())?).await;
        };
        let Self { world, running, job } = self;
        let mut scribe = Scribe(running.transcript.as_ref());
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
        drop((turn, job.share));
        let end = End { world: &world, running: &running, metadata: &job.metadata };
        match report {
            Ok(report) => end.ran(&report, job.language).await,
            Err(error) => end.did_not_run(error, job.detached).await,
        }
    }

    /// Waits for the turn; nothing where it was cancelled before.
    async fn turn(&self, entry: Entry) -> Result<Option<Turn>, Error> {
        let mut waiting = match entry {
            Entry::Now(turn) => return Ok(Some(turn)),
            Entry::Later(waiting) => waiting,
        };
        let turn = tokio::select! {
            turn = waiting.turn() => turn?,
            () = self.running.cancelled() => return Ok(None),
        };
        let Running { tenant, id, .. } = &*self.running;
        self.world.store.start_execution(tenant, id, Timestamp::now()).await?;
        Ok(Some(turn))
    }

    fn blank(&self, status: Status, error: Option<&str>) -> Value {
        object::blank(&self.running.id, status, error, &self.job.metadata)
    }

    async fn commit(&self, finished: Finished) -> Done {
        commit(&self.world, &self.running, finished).await
    }
}

/// What is to be done when an execution has ended.
struct End<'a> {
    world: &'a Arc<World>,
    running: &'a Arc<Running>,
    metadata: &'a Map<String, Value>,
}

impl End<'_> {
    async fn ran(self, report: &Report, language: &'static str) -> Done {
        self.world.meters.ran(report, language);
        let ended = Timestamp::now();
        let finished = match Finished::report(report, ended) {
            Ok(finished) => finished,
            Err(error) => {
                let why = format!("the result cannot be kept: {error}");
                Finished::failed(&self.blank(&why), ended)?
            }
        };
        commit(self.world, self.running, finished).await
    }

    /// A client that waits is told, and the same request may come again; for later, the reason is kept as a result.
    async fn did_not_run(self, error: Error, detached: bool) -> Done {
        let Running { tenant, id, .. } = &**self.running;
        tracing::warn!(execution = %id, code = ?error.code(), detail = %error, "nothing ran");
        if detached {
            let finished = Finished::failed(&self.blank(&error.message()), Timestamp::now())?;
            return commit(self.world, self.running, finished).await;
        }
        self.world.store.abandon_execution(tenant, id).await?;
        Err(error)
    }

    fn blank(&self, why: &str) -> Value {
        object::blank(&self.running.id, Status::Failed, Some(why), self.metadata)
    }
}

/// Commits a result. Where the disk refuses, that is said at once, and the result is tried again behind it.
async fn commit(world: &Arc<World>, running: &Arc<Running>, finished: Finished) -> Done {
    let json = Bytes::copy_from_slice(finished.json().as_bytes());
    let Running { tenant, id, .. } = &**running;
    match world.store.finish_execution(tenant, id, finished.clone()).await {
        Ok(_) => Ok(json),
        Err(error) => {
            if error.fault() != Fault::Caller && !matches!(error, StoreError::Closed) {
                tracing::error!(execution = %id, %error, "a result could not be committed; trying again");
                tokio::spawn(try_again(Arc::clone(world), Arc::clone(running), finished));
            }
            Err(error.into())
        }
    }
}

async fn try_again(world: Arc<World>, running: Arc<Running>, finished: Finished) {
    for _ in 0..TRIES {
        sleep(Duration::from_secs(1)).await;
        if world.store.finish_execution(&running.tenant, &running.id, finished.clone()).await.is_ok() {
            return;
        }
    }
    tracing::error!(execution = %running.id, "a result was lost: it could not be committed");
}

/// Both at once; when the first fails, the second is given up.
async fn both<T>(begin: impl Future<Output = Result<T, Error>>, work: impl Future<Output = Done>) -> Done {
    let (mut begin, mut work) = (pin!(begin), pin!(work));
    tokio::select! {
        // The store takes what it is given in order, so the beginning has to be handed in before any end.
        biased;
        begun = &mut begin => {
            begun?;
            work.await
        }
        done = &mut work => {
            begin.await?;
            done
        }
    }
}
