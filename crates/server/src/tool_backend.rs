//! The backend of model tools: runs tool calls for a tenant with the same run queue, quotas and records as
//! `/v1`.

use std::collections::BTreeSet;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_engine::packages::Progress;
use belljar_engine::policy::Verdict;
use belljar_engine::provider::BoxFuture;
use belljar_engine::request::Request;
use belljar_engine::sandbox::SandboxRequest;
use belljar_engine::sandbox_handle::Files;
use belljar_store::{SandboxId, SandboxRecord, Scope, TenantName};
use belljar_tools::{BackendFuture, OpenResult, ProgressSender, SandboxFiles, ToolBackend, forward_progress};
use serde_json::Value;
use tokio::runtime::Handle;

use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::body_memory::BodyReservation;
use crate::error::Error;
use crate::executions::executor::{self, SpawnOnDrop, StartOutcome};
use crate::executions::live_executions::{CancelOnDrop, LiveExecution};
use crate::executions::{admit, check_quota};
use crate::sandboxes::end_cause::EndCause;
use crate::sandboxes::lifecycle;
use crate::sandboxes::live_sandbox::SandboxInUse;

/// Maximum number of sandboxes listed for a caller without a session.
const MAX_LISTED_SANDBOXES: usize = 16;

/// Tool backend that acts for one tenant.
#[derive(Debug)]
pub(crate) struct TenantBackend {
    state: Arc<AppState>,
    caller: Caller,
    /// Sandboxes opened in the session, if there is one. They end with it.
    session_sandboxes: Option<Arc<SessionSandboxes>>,
}

impl TenantBackend {
    pub(crate) fn new(state: &Arc<AppState>, caller: Caller, opened: Option<Arc<SessionSandboxes>>) -> Self {
        Self { state: Arc::clone(state), caller, session_sandboxes: opened }
    }

    fn sandbox_caller(&self) -> Result<&Caller, Error> {
        if self.caller.scopes.contains(Scope::Sandboxes) {
            Ok(&self.caller)
        } else {
            Err(Error::Forbidden(Scope::Sandboxes))
        }
    }

    async fn find(&self, sandbox: &str) -> Result<SandboxInUse, Error> {
        lifecycle::find(&self.state, self.sandbox_caller()?, sandbox).await
    }

    /// Returns an empty reservation, because the memory of the HTTP body is already reserved.
    fn empty_reservation(&self) -> BodyReservation {
        self.state.body_memory.reserve(&self.caller.tenant)
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
        let job = admit(&self.state, &self.caller, inside, request, self.empty_reservation()).await?;
        check_quota(&self.state, &self.caller).await?;
        match executor::start(&self.state, &self.caller, job).await? {
            StartOutcome::Running(running, task) => Ok((running, task)),
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
    ) -> Result<String, Error> {
        let (running, mut task) = self.start(request, inside).await?;
        let _cancel_on_drop = CancelOnDrop(Arc::clone(&running));
        let carrying = async {
            tokio::select! {
                () = &mut task => {}
                () = cancel => {
                    running.cancel();
                    (&mut task).await;
                }
            }
        };
        forward_progress(running.progress.subscribe(), carrying, progress_sink(progress)).await;
        let done = running.done().await?;
        String::from_utf8(done.into()).map_err(|_| Error::Internal)
    }

    async fn open_sandbox(
        &self,
        request: SandboxRequest,
        progress: &mut dyn Progress,
    ) -> Result<OpenResult, Error> {
        let caller = self.sandbox_caller()?;
        check_quota(&self.state, caller).await?;
        let sender = ProgressSender::default();
        let messages = sender.0.subscribe();
        let opening = lifecycle::open(&self.state, caller, request, sender);
        let SandboxRecord { id, settings, .. } =
            forward_progress(messages, opening, progress_sink(progress)).await?;
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
        if !lifecycle::end(&self.state, used.sandbox(), EndCause::closed()).await {
            return Err(used.ended_error());
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
    ) -> BackendFuture<'a, String> {
        Box::pin(
            async move { self.run_to_result(request, inside, progress, cancel).await.map_err(tool_error) },
        )
    }

    fn check(&self, request: Request) -> BackendFuture<'_, Verdict> {
        Box::pin(async move {
            let job = admit(&self.state, &self.caller, None, request, self.empty_reservation())
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
        let all = self.state.sandboxes.all();
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

/// The sandboxes opened in a session. They end when it is dropped.
#[derive(Debug)]
pub(crate) struct SessionSandboxes {
    state: Arc<AppState>,
    ids: Mutex<BTreeSet<(TenantName, SandboxId)>>,
}

impl SessionSandboxes {
    pub(crate) fn new(state: &Arc<AppState>) -> Self {
        Self { state: Arc::clone(state), ids: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<(TenantName, SandboxId)>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, tenant: TenantName, id: SandboxId) {
        self.lock().insert((tenant, id));
    }

    fn remove(&self, tenant: TenantName, id: SandboxId) {
        self.lock().remove(&(tenant, id));
    }

    fn ids(&self) -> Vec<String> {
        self.lock().iter().map(|(_, id)| id.to_string()).collect()
    }
}

impl Drop for SessionSandboxes {
    fn drop(&mut self) {
        let ids = std::mem::take(&mut *self.lock());
        let Ok(runtime) = Handle::try_current() else { return };
        for (tenant, id) in ids {
            let state = Arc::clone(&self.state);
            runtime.spawn(async move {
                if let Some(open) = state.sandboxes.find(&tenant, &id) {
                    lifecycle::end(&state, &open, EndCause::session_ended()).await;
                }
            });
        }
    }
}
