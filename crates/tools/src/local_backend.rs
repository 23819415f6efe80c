//! The in-process backend: executes tool calls of one caller with an engine in this process.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_engine::Engine;
use belljar_engine::defaults::RequestDefaults;
use belljar_engine::packages::Progress;
use belljar_engine::policy::Verdict;
use belljar_engine::provider::{BoxFuture, Sink, SinkControl, Stream};
use belljar_engine::report::Report;
use belljar_engine::request::Request;
use belljar_engine::sandbox::{AdmittedSandbox, SandboxPackages, SandboxRequest};
use belljar_engine::sandbox_handle::{Files, SandboxHandle};
use tokio::time::Instant;

use crate::Error;
use crate::backend::{BackendFuture, OpenResult, SandboxFiles, ToolBackend};

/// Maximum number of open sandboxes.
const MAX_SANDBOXES: usize = 16;

/// A tool backend that uses an engine in this process, for one caller.
#[derive(Debug)]
pub struct LocalBackend {
    engine: Arc<Engine>,
    /// Defaults for fields that requests leave out.
    defaults: RequestDefaults,
    /// Generates an id with the given prefix; `None` if there is no randomness.
    new_id: fn(&str) -> Option<String>,
    sandboxes: Arc<LocalSlots>,
}

type LocalSlots = Mutex<BTreeMap<String, LocalSlot>>;

/// An open sandbox, or `None` while it is being opened.
type LocalSlot = Option<Arc<LocalSandbox>>;

#[derive(Debug)]
struct LocalSandbox {
    living: Box<dyn SandboxHandle>,
    admitted: AdmittedSandbox,
    packages: SandboxPackages,
    /// End of its last use.
    last_use: Mutex<Instant>,
    /// Serializes executions in the sandbox.
    execution_lock: tokio::sync::Mutex<()>,
}

impl LocalBackend {
    /// Creates a backend. `defaults` apply to every request; `name` generates ids with a prefix.
    pub fn new(engine: Arc<Engine>, defaults: RequestDefaults, name: fn(&str) -> Option<String>) -> Self {
        Self { engine, defaults, new_id: name, sandboxes: Arc::default() }
    }

    /// Closes every sandbox.
    pub async fn close_all(&self) {
        let all = std::mem::take(&mut *lock(&self.sandboxes));
        for kept in all.into_values().flatten() {
            kept.living.close().await;
        }
    }

    fn new_id(&self, kind: &str) -> Result<String, Error> {
        (self.new_id)(kind)
            .ok_or_else(|| Error::Backend("no randomness available on this machine".to_owned()))
    }

    fn find(&self, sandbox: &str) -> Result<LocalSandboxUse, Error> {
        let found = lock(&self.sandboxes).get(sandbox).cloned().flatten();
        found.map(LocalSandboxUse).ok_or_else(|| Error::NoSandbox(sandbox.chars().take(64).collect()))
    }

    /// Fills in the defaults of a sandbox request.
    fn with_defaults(&self, request: SandboxRequest) -> SandboxRequest {
        let base = &self.defaults.request;
        SandboxRequest {
            image: base.image.clone(),
            profile: base.profile.clone(),
            provider: base.provider.clone(),
            policy: base.policy.clone(),
            network: base.network.clone(),
            gpus: base.gpus,
            limits: base.limits.clone(),
            require: base.require.clone(),
            ..request
        }
    }

    async fn run_in_sandbox(
        &self,
        kept: LocalSandboxUse,
        request: Request,
        sink: &mut dyn Sink,
        cancel: BoxFuture<'_, ()>,
    ) -> Result<Report, Error> {
        let (engine, sandbox) = (Arc::clone(&self.engine), Arc::clone(&kept.0));
        let admitted =
            run_blocking(move || engine.admit_in_sandbox(&sandbox.admitted, request, None)).await?;
        let mut cancel = cancel;
        let _turn = tokio::select! {
            turn = kept.execution_lock.lock() => turn,
            () = &mut cancel => return Err(Error::Cancelled),
        };
        let id = self.new_id("exec")?;
        Ok(self.engine.execute_in_sandbox(&*kept.living, &kept.packages, id, admitted, sink, cancel).await?)
    }

    async fn open_in_slot(
        &self,
        id: String,
        request: SandboxRequest,
        progress: &mut dyn Progress,
    ) -> Result<OpenResult, Error> {
        let mut admitted = self.engine.admit_sandbox(self.with_defaults(request), None)?;
        let (living, prepared) = self.engine.open_sandbox(&mut admitted, progress).await?;
        let timeout = admitted.timeout;
        let kept = Arc::new(LocalSandbox {
            living,
            admitted,
            packages: SandboxPackages::from(&prepared),
            last_use: Mutex::new(Instant::now()),
            execution_lock: tokio::sync::Mutex::default(),
        });
        lock(&self.sandboxes).insert(id.clone(), Some(kept));
        tokio::spawn(close_when_unused(Arc::downgrade(&self.sandboxes), id.clone(), timeout));
        Ok(OpenResult { sandbox: id, timeout_ms: timeout.as_millis() as u64, packages: prepared.packages })
    }
}

/// Runs code analysis on a blocking thread.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, belljar_engine::Error> + Send + 'static,
) -> Result<T, Error> {
    let read = tokio::task::spawn_blocking(work).await;
    Ok(read.map_err(|_| Error::Backend("the code could not be analyzed".to_owned()))??)
}

/// Closes a sandbox that was not used for its timeout.
async fn close_when_unused(open: std::sync::Weak<LocalSlots>, id: String, timeout: Duration) {
    let mut due = Instant::now() + timeout;
    loop {
        tokio::time::sleep_until(due).await;
        let Some(open) = open.upgrade() else { return };
        let Some(kept) = lock(&open).get(&id).cloned().flatten() else { return };
        // Besides this one and the one in the table, each use has a reference.
        if Arc::strong_count(&kept) > 2 {
            kept.mark_used();
        }
        due = kept.last_use() + timeout;
        if due <= Instant::now() {
            lock(&open).remove(&id);
            kept.living.close().await;
            return;
        }
    }
}

/// A use of a sandbox. At its end, the timeout counts again.
#[derive(Debug)]
struct LocalSandboxUse(Arc<LocalSandbox>);

impl Deref for LocalSandboxUse {
    type Target = LocalSandbox;

    fn deref(&self) -> &LocalSandbox {
        &self.0
    }
}

impl Drop for LocalSandboxUse {
    fn drop(&mut self) {
        self.0.mark_used();
    }
}

impl LocalSandbox {
    fn last_use(&self) -> Instant {
        *self.last_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark_used(&self) {
        *self.last_use.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// A reserved slot in the table of sandboxes; released on drop unless a sandbox was opened in it.
struct SlotReservation<'a>(&'a LocalSlots, String);

impl<'a> SlotReservation<'a> {
    fn new(open: &'a LocalSlots, id: String) -> Result<Self, Error> {
        let mut sandboxes = lock(open);
        if sandboxes.len() >= MAX_SANDBOXES {
            return Err(Error::TooManySandboxes(MAX_SANDBOXES));
        }
        sandboxes.insert(id.clone(), None);
        Ok(Self(open, id))
    }
}

impl Drop for SlotReservation<'_> {
    fn drop(&mut self) {
        let mut sandboxes = lock(self.0);
        if matches!(sandboxes.get(&self.1), Some(None)) {
            sandboxes.remove(&self.1);
        }
    }
}

impl ToolBackend for LocalBackend {
    fn run<'a>(
        &'a self,
        request: Request,
        inside: Option<&'a str>,
        progress: &'a mut dyn Progress,
        cancel: BoxFuture<'a, ()>,
    ) -> BackendFuture<'a, String> {
        Box::pin(async move {
            let mut sink = ProgressSink(progress);
            let report = match inside {
                Some(sandbox) => {
                    let kept = self.find(sandbox)?;
                    self.run_in_sandbox(kept, request, &mut sink, cancel).await?
                }
                None => {
                    let (request, paths) = self.defaults.complete(request);
                    let engine = Arc::clone(&self.engine);
                    let admitted = run_blocking(move || engine.admit(request, paths)).await?;
                    self.engine.execute(self.new_id("exec")?, admitted, &mut sink, cancel).await?
                }
            };
            serde_json::to_string(&report)
                .map_err(|error| Error::Backend(format!("cannot serialize the result: {error}")))
        })
    }

    fn check(&self, request: Request) -> BackendFuture<'_, Verdict> {
        let (request, paths) = self.defaults.complete(request);
        let engine = Arc::clone(&self.engine);
        Box::pin(async move {
            let admitted = run_blocking(move || engine.admit(request, paths)).await?;
            Ok(admitted.verdict().clone())
        })
    }

    fn open<'a>(
        &'a self,
        request: SandboxRequest,
        progress: &'a mut dyn Progress,
    ) -> BackendFuture<'a, OpenResult> {
        Box::pin(async move {
            let id = self.new_id("sbx")?;
            let _reserved = SlotReservation::new(&self.sandboxes, id.clone())?;
            self.open_in_slot(id, request, progress).await
        })
    }

    fn close<'a>(&'a self, sandbox: &'a str) -> BackendFuture<'a, ()> {
        Box::pin(async move {
            let kept = self.find(sandbox)?;
            lock(&self.sandboxes).remove(sandbox);
            // Spawned, so that closing completes even if the caller stops waiting.
            let closing = tokio::spawn(async move { kept.living.close().await });
            closing.await.map_err(|_| Error::Backend("the sandbox could not be closed".to_owned()))
        })
    }

    fn sandbox_files<'a>(&'a self, sandbox: &'a str) -> BackendFuture<'a, Box<dyn SandboxFiles>> {
        let files = self.find(sandbox).map(|kept| Box::new(kept) as Box<dyn SandboxFiles>);
        Box::pin(std::future::ready(files))
    }

    fn sandboxes(&self) -> Vec<String> {
        lock(&self.sandboxes)
            .iter()
            .filter(|(_, sandbox)| sandbox.is_some())
            .map(|(id, _)| id.clone())
            .collect()
    }
}

impl SandboxFiles for LocalSandboxUse {
    fn files(&self) -> &dyn Files {
        self.living.files()
    }
}

/// A sink that forwards progress and ignores live output, which is in the result.
struct ProgressSink<'a>(&'a mut dyn Progress);

impl Sink for ProgressSink<'_> {
    fn output(&mut self, _stream: Stream, _bytes: &[u8]) -> SinkControl {
        SinkControl::Continue
    }

    fn restart(&mut self) -> bool {
        true
    }

    fn progress(&mut self, what: &str) {
        self.0.report(what);
    }
}

fn lock(sandboxes: &LocalSlots) -> MutexGuard<'_, BTreeMap<String, LocalSlot>> {
    sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
}
