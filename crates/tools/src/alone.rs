//! The in-process backend: executes tool calls of one caller with an engine in this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_engine::Engine;
use belljar_engine::defaults::Defaults;
use belljar_engine::living::{Files, Living};
use belljar_engine::packages::Progress;
use belljar_engine::policy::Verdict;
use belljar_engine::provider::{BoxFuture, Flow, Sink, Stream};
use belljar_engine::report::Report;
use belljar_engine::request::Request;
use belljar_engine::sandbox::{AdmittedSandbox, SandboxRequest};
use serde_json::Value;

use crate::Error;
use crate::hands::{Done, Entered, Hands, Opened};

/// Maximum number of open sandboxes.
const MOST: usize = 16;

/// A tool backend that uses an engine in this process, for one caller.
#[derive(Debug)]
pub struct Alone {
    engine: Arc<Engine>,
    /// Defaults for fields that requests leave out.
    defaults: Defaults,
    /// Generates an id with the given prefix; `None` if there is no randomness.
    name: fn(&str) -> Option<String>,
    open: Arc<Sandboxes>,
}

type Sandboxes = Mutex<BTreeMap<String, Place>>;

/// An open sandbox, or `None` while it is being opened.
type Place = Option<Arc<Kept>>;

#[derive(Debug)]
struct Kept {
    living: Box<dyn Living>,
    admitted: AdmittedSandbox,
    /// Serializes executions in the sandbox.
    turn: tokio::sync::Mutex<()>,
}

impl Alone {
    /// Creates a backend. `defaults` apply to every request; `name` generates ids with a prefix.
    pub fn new(engine: Arc<Engine>, defaults: Defaults, name: fn(&str) -> Option<String>) -> Self {
        Self { engine, defaults, name, open: Arc::default() }
    }

    /// Closes every sandbox.
    pub async fn close_all(&self) {
        let all = std::mem::take(&mut *lock(&self.open));
        for kept in all.into_values().flatten() {
            kept.living.close().await;
        }
    }

    fn named(&self, kind: &str) -> Result<String, Error> {
        (self.name)(kind).ok_or_else(|| Error::Hands("no randomness available on this machine".to_owned()))
    }

    fn find(&self, sandbox: &str) -> Result<Arc<Kept>, Error> {
        let found = lock(&self.open).get(sandbox).cloned().flatten();
        found.ok_or_else(|| Error::NoSandbox(sandbox.chars().take(64).collect()))
    }

    /// Fills in the defaults of a sandbox request.
    fn completed(&self, request: SandboxRequest) -> SandboxRequest {
        let base = &self.defaults.request;
        SandboxRequest {
            image: base.image.clone(),
            profile: base.profile.clone(),
            provider: base.provider.clone(),
            policy: base.policy.clone(),
            network: base.network.clone(),
            limits: base.limits.clone(),
            require: base.require.clone(),
            ..request
        }
    }

    async fn run_inside(
        &self,
        kept: Arc<Kept>,
        request: Request,
        sink: &mut dyn Sink,
        cancel: BoxFuture<'_, ()>,
    ) -> Result<Report, Error> {
        let (engine, sandbox) = (Arc::clone(&self.engine), Arc::clone(&kept));
        let admitted = reading(move || engine.admit_inside(&sandbox.admitted, request, None)).await?;
        let mut cancel = cancel;
        let _turn = tokio::select! {
            turn = kept.turn.lock() => turn,
            () = &mut cancel => return Err(Error::Cancelled),
        };
        let id = self.named("exec")?;
        Ok(self.engine.execute_inside(&*kept.living, id, admitted, sink, cancel).await?)
    }

    async fn make(
        &self,
        id: String,
        request: SandboxRequest,
        progress: &mut dyn Progress,
    ) -> Result<Opened, Error> {
        let admitted = self.engine.admit_sandbox(self.completed(request), None)?;
        let (living, prepared) = self.engine.open_sandbox(&admitted, progress).await?;
        let timeout = admitted.timeout;
        let kept = Arc::new(Kept { living, admitted, turn: tokio::sync::Mutex::default() });
        lock(&self.open).insert(id.clone(), Some(kept));
        tokio::spawn(end_after(Arc::downgrade(&self.open), id.clone(), timeout));
        Ok(Opened { sandbox: id, timeout_ms: timeout.as_millis() as u64, packages: prepared.packages })
    }
}

/// Runs code analysis on a blocking thread.
async fn reading<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, belljar_engine::Error> + Send + 'static,
) -> Result<T, Error> {
    let read = tokio::task::spawn_blocking(work).await;
    Ok(read.map_err(|_| Error::Hands("the code could not be analyzed".to_owned()))??)
}

/// Closes a sandbox at its timeout, if it is still open.
async fn end_after(open: std::sync::Weak<Sandboxes>, id: String, timeout: Duration) {
    tokio::time::sleep(timeout).await;
    let kept = open.upgrade().and_then(|open| lock(&open).remove(&id).flatten());
    if let Some(kept) = kept {
        kept.living.close().await;
    }
}

/// A reserved slot in the table of sandboxes; released on drop unless a sandbox was opened in it.
struct Reserved<'a>(&'a Sandboxes, String);

impl<'a> Reserved<'a> {
    fn new(open: &'a Sandboxes, id: String) -> Result<Self, Error> {
        let mut sandboxes = lock(open);
        if sandboxes.len() >= MOST {
            return Err(Error::TooManySandboxes(MOST));
        }
        sandboxes.insert(id.clone(), None);
        Ok(Self(open, id))
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut sandboxes = lock(self.0);
        if matches!(sandboxes.get(&self.1), Some(None)) {
            sandboxes.remove(&self.1);
        }
    }
}

impl Hands for Alone {
    fn run<'a>(
        &'a self,
        request: Request,
        inside: Option<&'a str>,
        progress: &'a mut dyn Progress,
        cancel: BoxFuture<'a, ()>,
    ) -> Done<'a, Value> {
        Box::pin(async move {
            let mut sink = Quiet(progress);
            let report = match inside {
                Some(sandbox) => {
                    let kept = self.find(sandbox)?;
                    self.run_inside(kept, request, &mut sink, cancel).await?
                }
                None => {
                    let (request, paths) = self.defaults.complete(request);
                    let engine = Arc::clone(&self.engine);
                    let admitted = reading(move || engine.admit(request, paths)).await?;
                    self.engine.execute(self.named("exec")?, admitted, &mut sink, cancel).await?
                }
            };
            serde_json::to_value(&report)
                .map_err(|error| Error::Hands(format!("cannot serialize the result: {error}")))
        })
    }

    fn check(&self, request: Request) -> Done<'_, Verdict> {
        let (request, paths) = self.defaults.complete(request);
        let engine = Arc::clone(&self.engine);
        Box::pin(async move {
            let admitted = reading(move || engine.admit(request, paths)).await?;
            Ok(admitted.verdict().clone())
        })
    }

    fn open<'a>(&'a self, request: SandboxRequest, progress: &'a mut dyn Progress) -> Done<'a, Opened> {
        Box::pin(async move {
            let id = self.named("sbx")?;
            let _reserved = Reserved::new(&self.open, id.clone())?;
            self.make(id, request, progress).await
        })
    }

    fn close<'a>(&'a self, sandbox: &'a str) -> Done<'a, ()> {
        Box::pin(async move {
            let kept = self.find(sandbox)?;
            lock(&self.open).remove(sandbox);
            // Spawned, so that closing completes even if the caller stops waiting.
            let closing = tokio::spawn(async move { kept.living.close().await });
            closing.await.map_err(|_| Error::Hands("the sandbox could not be closed".to_owned()))
        })
    }

    fn enter<'a>(&'a self, sandbox: &'a str) -> Done<'a, Box<dyn Entered>> {
        let entered = self.find(sandbox).map(|kept| Box::new(kept) as Box<dyn Entered>);
        Box::pin(std::future::ready(entered))
    }

    fn sandboxes(&self) -> Vec<String> {
        lock(&self.open).iter().filter(|(_, place)| place.is_some()).map(|(id, _)| id.clone()).collect()
    }
}

impl Entered for Arc<Kept> {
    fn files(&self) -> &dyn Files {
        self.living.files()
    }
}

/// A sink that forwards progress and ignores live output, which is in the result.
struct Quiet<'a>(&'a mut dyn Progress);

impl Sink for Quiet<'_> {
    fn output(&mut self, _stream: Stream, _bytes: &[u8]) -> Flow {
        Flow::Continue
    }

    fn restart(&mut self) -> bool {
        true
    }

    fn progress(&mut self, what: &str) {
        self.0.at(what);
    }
}

fn lock(sandboxes: &Sandboxes) -> MutexGuard<'_, BTreeMap<String, Place>> {
    sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
}
