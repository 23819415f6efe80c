//! The backend of model tools: runs tool calls for a tenant with the same run queue, quotas and records as
//! `/v1`.

use std::future::{Ready, ready};
use std::sync::Arc;

use belljar_engine::packages::Progress;
use belljar_engine::policy::Verdict;
use belljar_engine::provider::BoxFuture;
use belljar_engine::request::Request;
use belljar_engine::sandbox::SandboxRequest;
use belljar_engine::sandbox_handle::Files;
use belljar_store::{SandboxEnd, SandboxRecord, Scope};
use belljar_tools::{BackendFuture, OpenResult, ProgressSender, SandboxFiles, ToolBackend, forward_progress};
use serde_json::Value;

use super::sessions::SessionSandboxes;
use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::body::BodyReservation;
use crate::error::Error;
use crate::executions::{admit, check_quota};
use crate::executor::{self, SpawnOnDrop, StartOutcome};
use crate::live_executions::{CancelOnDrop, LiveExecution};
use crate::sandboxes::{self, SandboxInUse};

/// Maximum number of sandboxes listed for a caller without a session.
const MAX_LISTED_SANDBOXES: usize = 16;

/// Tool backend that acts for one tenant.
#[derive(Debug)]
pub(crate) struct TenantBackend {
    world: Arc<AppState>,
    caller: Caller,
    /// Sandboxes opened in the session, if there is one. They end with it.
    session_sandboxes: Option<Arc<SessionSandboxes>>,
}

impl TenantBackend {
    pub(crate) fn new(world: &Arc<AppState>, caller: Caller, opened: Option<Arc<SessionSandboxes>>) -> Self {
        Self { world: Arc::clone(world), caller, session_sandboxes: opened }
    }

    fn sandbox_caller(&self) -> Result<&Caller, Error> {
        if self.caller.scopes.contains(Scope::Sandboxes) {
            Ok(&self.caller)
        } else {
            Err(Error::Forbidden(Scope::Sandboxes))
        }
    }

    async fn find(&self, sandbox: &str) -> Result<SandboxInUse, Error> {
        sandboxes::find(&self.world, self.sandbox_caller()?, sandbox).await
    }

    /// Returns an empty reservation, because the memory of the HTTP body is already reserved.
    fn empty_reservation(&self) -> BodyReservation {
        self.world.bodies.reserve(&self.caller.tenant)
    }

    async fn start(
        &self,
        request: Request,
        inside: Option<&str>,
    ) -> Result<(Arc<LiveExecution>, SpawnOnDrop), Error> {
        let inside = match inside {
            Some(sandbox) => Some(self.find(sandbox).await?),
            None => None,
        };
        let job = admit(&self.world, &self.caller, inside, request, self.empty_reservation()).await?;
        check_quota(&self.world, &self.caller).await?;
        match executor::start(&self.world, &self.caller, job).await? {
            StartOutcome::Running(running, carried) => Ok((running, carried)),
            // Only requests with an idempotency key can be known, and tool calls have none.
            StartOutcome::Known(_) => Err(Error::Internal),
        }
    }

    async fn run_to_result(
        &self,
        request: Request,
        inside: Option<&str>,
        progress: &mut dyn Progress,
        cancel: BoxFuture<'_, ()>,
    ) -> Result<Value, Error> {
        let (running, mut carried) = self.start(request, inside).await?;
        let _leash = CancelOnDrop(Arc::clone(&running));
        let carrying = async {
            tokio::select! {
                () = &mut carried => {}
                () = cancel => {
                    running.cancel();
                    (&mut carried).await;
                }
            }
        };
        forward_progress(running.progress.subscribe(), carrying, progress_sink(progress)).await;
        let done = running.done().await?;
        serde_json::from_slice(&done).map_err(|_| Error::Internal)
    }

    async fn open_sandbox(
        &self,
        request: SandboxRequest,
        progress: &mut dyn Progress,
    ) -> Result<OpenResult, Error> {
        let caller = self.sandbox_caller()?;
        check_quota(&self.world, caller).await?;
        let telling = ProgressSender::default();
        let told = telling.0.subscribe();
        let opening = sandboxes::open(&self.world, caller, request, telling);
        let SandboxRecord { id, settings, .. } =
            forward_progress(told, opening, progress_sink(progress)).await?;
        if let Some(opened) = &self.session_sandboxes {
            opened.add(caller.tenant.clone(), id.clone());
        }
        let packages = settings.get("dependencies").and_then(|found| found["packages"].as_array());
        let packages = packages.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        let timeout_ms = settings.get("timeout_ms").and_then(Value::as_u64).unwrap_or_default();
        Ok(OpenResult { sandbox: id.to_string(), timeout_ms, packages })
    }

    async fn close_sandbox(&self, sandbox: &str) -> Result<(), Error> {
        let used = self.find(sandbox).await?;
        if !sandboxes::end(&self.world, used.sandbox(), SandboxEnd::Closed).await {
            return Err(Error::SandboxEnded);
        }
        if let Some(opened) = &self.session_sandboxes {
            opened.remove(used.tenant.clone(), used.id.clone());
        }
        Ok(())
    }
}

impl ToolBackend for TenantBackend {
    fn run<'a>(
        &'a self,
        request: Request,
        inside: Option<&'a str>,
        progress: &'a mut dyn Progress,
        cancel: BoxFuture<'a, ()>,
    ) -> BackendFuture<'a, Value> {
        Box::pin(
            async move { self.run_to_result(request, inside, progress, cancel).await.map_err(tool_error) },
        )
    }

    fn check(&self, request: Request) -> BackendFuture<'_, Verdict> {
        Box::pin(async move {
            let job = admit(&self.world, &self.caller, None, request, self.empty_reservation())
                .await
                .map_err(tool_error)?;
            Ok(job.admitted.verdict().clone())
        })
    }

    fn open<'a>(
        &'a self,
        request: SandboxRequest,
        progress: &'a mut dyn Progress,
    ) -> BackendFuture<'a, OpenResult> {
        Box::pin(async move { self.open_sandbox(request, progress).await.map_err(tool_error) })
    }

    fn close<'a>(&'a self, sandbox: &'a str) -> BackendFuture<'a, ()> {
        Box::pin(async move { self.close_sandbox(sandbox).await.map_err(tool_error) })
    }

    fn sandbox_files<'a>(&'a self, sandbox: &'a str) -> BackendFuture<'a, Box<dyn SandboxFiles>> {
        Box::pin(async move {
            Ok(Box::new(self.find(sandbox).await.map_err(tool_error)?) as Box<dyn SandboxFiles>)
        })
    }

    fn sandboxes(&self) -> Vec<String> {
        if let Some(opened) = &self.session_sandboxes {
            return opened.ids();
        }
        let all = self.world.sandboxes.all();
        let own = all.iter().filter(|open| open.tenant == self.caller.tenant);
        own.take(MAX_LISTED_SANDBOXES).map(|open| open.id.to_string()).collect()
    }
}

impl SandboxFiles for SandboxInUse {
    fn files(&self) -> &dyn Files {
        self.living.files()
    }
}

/// Returns a function that reports each message it is given as progress.
fn progress_sink(progress: &mut dyn Progress) -> impl FnMut(String) -> Ready<()> {
    |what| {
        progress.report(&what);
        ready(())
    }
}

fn tool_error(error: Error) -> belljar_tools::Error {
    belljar_tools::Error::Backend(error.message())
}
