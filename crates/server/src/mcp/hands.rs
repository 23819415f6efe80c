//! The backend of model tools: runs tool calls for a tenant with the same run queue, quotas and records as
//! `/v1`.

use std::future::{Ready, ready};
use std::sync::Arc;

use belljar_engine::living::Files;
use belljar_engine::packages::Progress;
use belljar_engine::policy::Verdict;
use belljar_engine::provider::BoxFuture;
use belljar_engine::request::Request;
use belljar_engine::sandbox::SandboxRequest;
use belljar_store::{Sandbox, SandboxEnd, Scope};
use belljar_tools::{Done, Entered, Hands, Opened as Shown, Telling, hear};
use serde_json::Value;

use super::sessions::Opened;
use crate::accounts::Caller;
use crate::body::BodyHold;
use crate::conduct::{self, Carried, Started};
use crate::error::Error;
use crate::executions::{admit, check_quota};
use crate::live::{Leash, Running};
use crate::sandboxes::{self, Used};
use crate::world::World;

/// Maximum number of sandboxes listed for a caller without a session.
const SHOWN: usize = 16;

/// Tool backend that acts for one tenant.
#[derive(Debug)]
pub(crate) struct Behalf {
    world: Arc<World>,
    caller: Caller,
    /// Sandboxes opened in the session, if there is one. They end with it.
    opened: Option<Arc<Opened>>,
}

impl Behalf {
    pub(crate) fn new(world: &Arc<World>, caller: Caller, opened: Option<Arc<Opened>>) -> Self {
        Self { world: Arc::clone(world), caller, opened }
    }

    fn keeper(&self) -> Result<&Caller, Error> {
        if self.caller.scopes.contains(Scope::Sandboxes) {
            Ok(&self.caller)
        } else {
            Err(Error::Forbidden(Scope::Sandboxes))
        }
    }

    async fn find(&self, sandbox: &str) -> Result<Used, Error> {
        sandboxes::find(&self.world, self.keeper()?, sandbox).await
    }

    /// Returns an empty reservation, because the memory of the HTTP body is already reserved.
    fn hold(&self) -> BodyHold {
        self.world.bodies.hold(&self.caller.tenant)
    }

    async fn start(&self, request: Request, inside: Option<&str>) -> Result<(Arc<Running>, Carried), Error> {
        let inside = match inside {
            Some(sandbox) => Some(self.find(sandbox).await?),
            None => None,
        };
        let job = admit(&self.world, &self.caller, inside, request, self.hold()).await?;
        check_quota(&self.world, &self.caller).await?;
        match conduct::start(&self.world, &self.caller, job).await? {
            Started::Running(running, carried) => Ok((running, carried)),
            // Only requests with an idempotency key can be known, and tool calls have none.
            Started::Known(_) => Err(Error::Internal),
        }
    }

    async fn result(
        &self,
        request: Request,
        inside: Option<&str>,
        progress: &mut dyn Progress,
        cancel: BoxFuture<'_, ()>,
    ) -> Result<Value, Error> {
        let (running, mut carried) = self.start(request, inside).await?;
        let _leash = Leash(Arc::clone(&running));
        let carrying = async {
            tokio::select! {
                () = &mut carried => {}
                () = cancel => {
                    running.cancel();
                    (&mut carried).await;
                }
            }
        };
        hear(running.progress.subscribe(), carrying, to(progress)).await;
        let done = running.done().await?;
        serde_json::from_slice(&done).map_err(|_| Error::Internal)
    }

    async fn opened(&self, request: SandboxRequest, progress: &mut dyn Progress) -> Result<Shown, Error> {
        let caller = self.keeper()?;
        check_quota(&self.world, caller).await?;
        let telling = Telling::default();
        let told = telling.0.subscribe();
        let opening = sandboxes::open(&self.world, caller, request, telling);
        let Sandbox { id, settings, .. } = hear(told, opening, to(progress)).await?;
        if let Some(opened) = &self.opened {
            opened.add(caller.tenant.clone(), id.clone());
        }
        let packages = settings.get("dependencies").and_then(|found| found["packages"].as_array());
        let packages = packages.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        let timeout_ms = settings.get("timeout_ms").and_then(Value::as_u64).unwrap_or_default();
        Ok(Shown { sandbox: id.to_string(), timeout_ms, packages })
    }

    async fn closed(&self, sandbox: &str) -> Result<(), Error> {
        let used = self.find(sandbox).await?;
        if !sandboxes::end(&self.world, used.open(), SandboxEnd::Closed).await {
            return Err(Error::SandboxEnded);
        }
        if let Some(opened) = &self.opened {
            opened.remove(used.tenant.clone(), used.id.clone());
        }
        Ok(())
    }
}

impl Hands for Behalf {
    fn run<'a>(
        &'a self,
        request: Request,
        inside: Option<&'a str>,
        progress: &'a mut dyn Progress,
        cancel: BoxFuture<'a, ()>,
    ) -> Done<'a, Value> {
        Box::pin(async move { self.result(request, inside, progress, cancel).await.map_err(said) })
    }

    fn check(&self, request: Request) -> Done<'_, Verdict> {
        Box::pin(async move {
            let job = admit(&self.world, &self.caller, None, request, self.hold()).await.map_err(said)?;
            Ok(job.admitted.verdict().clone())
        })
    }

    fn open<'a>(&'a self, request: SandboxRequest, progress: &'a mut dyn Progress) -> Done<'a, Shown> {
        Box::pin(async move { self.opened(request, progress).await.map_err(said) })
    }

    fn close<'a>(&'a self, sandbox: &'a str) -> Done<'a, ()> {
        Box::pin(async move { self.closed(sandbox).await.map_err(said) })
    }

    fn enter<'a>(&'a self, sandbox: &'a str) -> Done<'a, Box<dyn Entered>> {
        Box::pin(async move { Ok(Box::new(self.find(sandbox).await.map_err(said)?) as Box<dyn Entered>) })
    }

    fn sandboxes(&self) -> Vec<String> {
        if let Some(opened) = &self.opened {
            return opened.ids();
        }
        let all = self.world.sandboxes.all();
        let own = all.iter().filter(|open| open.tenant == self.caller.tenant);
        own.take(SHOWN).map(|open| open.id.to_string()).collect()
    }
}

impl Entered for Used {
    fn files(&self) -> &dyn Files {
        self.living.files()
    }
}

/// Forwards progress messages.
fn to(progress: &mut dyn Progress) -> impl FnMut(String) -> Ready<()> {
    |what| {
        progress.at(&what);
        ready(())
    }
}

fn said(error: Error) -> belljar_tools::Error {
    belljar_tools::Error::Hands(error.message())
}
