//! Providers that run on a remote service. Each run creates one sandbox at the service, here called a
//! machine, and deletes it however the run ends.
//!
//! ```text
//! Remote ── service: E2B or AgentRun ──▶ LeasedMachine ── files, commands ──▶ task.rs
//! ```
//!
//! Isolation is the service's responsibility. Belljar enforces time and output limits by deleting the
//! machine.

mod agentrun;
mod connect;
mod e2b;
mod http;
mod signature;
mod task;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::layer::Layer;
use belljar_engine::outcome::{Ending, Kernel, Outcome, Receipt, Service, Usage, Warmth};
use belljar_engine::plan::{Image, Network, Plan, Task};
use belljar_engine::provider::{
    BoxFuture, Capabilities, Flow, MissingLayer, PoolMetrics, Provider, ProviderError, Sandbox, Sink, Stream,
};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use crate::settings::{AgentRunSettings, E2bSettings};
use task::Left;

/// Requirements for a machine.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// How long the program may run.
    timeout: Duration,
    /// Whether it may reach the internet.
    internet: bool,
}

/// A machine at the service.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lent {
    id: String,
    /// The URL of its daemon.
    url: String,
    /// The access token of its daemon.
    token: Option<String>,
}

/// A command on a machine.
#[derive(Debug)]
struct Command {
    words: Vec<String>,
    env: Vec<(String, String)>,
    workdir: String,
    /// Whether it is one of our scripts, which need full privileges.
    ours: bool,
    /// The timeout.
    timeout: Duration,
    /// How much of each stream is kept.
    keep: u64,
}

/// Which network a service's machines have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outside {
    /// The internet on request.
    AsAsked,
    /// Always the internet.
    Always,
    /// No network.
    Never,
}

/// Receives the output of a command as it arrives.
type Ear<'a> = &'a mut (dyn FnMut(Stream, &[u8]) -> Flow + Send);
type Asked<'a, T> = BoxFuture<'a, Result<T, ProviderError>>;

/// A service that provides machines.
trait Lender: Debug + Send + Sync {
    fn name(&self) -> &'static str;
    /// Returns the service's description for receipts.
    fn service(&self) -> Service;
    /// Returns the longest time a program may run.
    fn longest(&self) -> Duration;
    /// Returns how long after a program's end the service may take to report it.
    fn grace(&self) -> Duration;
    fn outside(&self) -> Outside;
    /// Returns the user who must own a program's files, or an empty string if commands run as the owner
    /// anyway.
    fn user(&self) -> &'static str;
    /// Checks that the service accepts requests.
    fn check(&self) -> Asked<'_, ()>;
    fn borrow(&self, terms: Terms) -> Asked<'_, Lent>;
    fn put<'a>(&'a self, lent: &'a Lent, path: &'a str, content: Vec<u8>) -> Asked<'a, ()>;
    /// Reads a file up to a size limit.
    fn get<'a>(&'a self, lent: &'a Lent, path: &'a str, bound: u64) -> Asked<'a, Vec<u8>>;
    fn run<'a>(&'a self, lent: &'a Lent, command: Command, ear: Ear<'a>) -> Asked<'a, Ending>;
    /// Deletes the machine. Succeeds if it is gone already.
    fn give_back<'a>(&'a self, lent: &'a Lent) -> Asked<'a, ()>;
}

/// A provider whose sandboxes run at a remote service.
#[derive(Debug)]
pub struct Remote(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    lender: Box<dyn Lender>,
    permits: Arc<Semaphore>,
    /// The total number of permits.
    count: u32,
    closing: watch::Sender<bool>,
}

impl Remote {
    /// Creates the provider for E2B without connecting.
    ///
    /// # Errors
    /// Names the setting that is missing or wrong.
    pub fn e2b(settings: &E2bSettings) -> Result<Self, ProviderError> {
        Ok(Self::over(Box::new(e2b::E2b::new(settings)?), settings.sandboxes))
    }

    /// Creates the provider for Aliyun AgentRun without connecting.
    ///
    /// # Errors
    /// Names the setting that is missing or wrong.
    pub fn agentrun(settings: &AgentRunSettings) -> Result<Self, ProviderError> {
        Ok(Self::over(Box::new(agentrun::AgentRun::new(settings)?), settings.sandboxes))
    }

    fn over(lender: Box<dyn Lender>, count: u32) -> Self {
        let permits = Arc::new(Semaphore::new(count as usize));
        Self(Arc::new(Shared { lender, permits, count, closing: watch::Sender::new(false) }))
    }
}

impl Provider for Remote {
    fn name(&self) -> &'static str {
        self.0.lender.name()
    }

    fn capabilities(&self) -> Capabilities {
        let reason = format!("isolation is provided by the service at {}", self.0.lender.service().host);
        let missing = |layer: &Layer| MissingLayer {
            layer: *layer,
            reason: reason.clone(),
            remedy: "use provider 'native' if Belljar must enforce it".to_owned(),
        };
        let missing = Layer::ALL.iter().map(missing).collect();
        Capabilities { missing, remote: true, ..Capabilities::default() }
    }

    fn open<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Result<Box<dyn Sandbox>, ProviderError>> {
        let admitted = self.0.admit(plan).map(|()| {
            Box::new(RemoteSandbox { shared: Arc::clone(&self.0), plan: plan.clone() }) as Box<dyn Sandbox>
        });
        Box::pin(std::future::ready(admitted))
    }

    /// Checks that the service answers and accepts our key.
    fn check(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        self.0.lender.check()
    }

    fn pools(&self) -> BoxFuture<'_, Vec<PoolMetrics>> {
        Box::pin(std::future::ready(Vec::new()))
    }

    fn shut_down(&self) -> BoxFuture<'_, ()> {
        self.0.closing.send_replace(true);
        Box::pin(async {
            // A machine's permit is released only after it was deleted.
            let _all = self.0.permits.acquire_many(self.0.count).await;
        })
    }
}

impl Shared {
    /// Refuses plans that the service cannot run.
    fn admit(&self, plan: &Plan) -> Result<(), ProviderError> {
        let name = self.lender.name();
        let refuse = |field, what: &str| {
            let message = format!("provider '{name}' {what}");
            Err(ProviderError::Unsupported { field, message })
        };
        if plan.image != Image::Host {
            return refuse("image", "runs its configured template; leave out image");
        }
        if plan.playground.is_some() || !plan.mounts.is_empty() {
            return refuse("mount", "cannot mount folders or volumes of this machine; use files");
        }
        if !plan.package_layers.is_empty() {
            return refuse("dependencies", "has only the packages of its template; use --no-deps");
        }
        match (&plan.network, self.lender.outside()) {
            (Network::Hosts(_), _) => {
                return refuse("network", "cannot restrict the network to individual hosts");
            }
            (Network::None, Outside::Always) => {
                return refuse("network", "cannot block the internet; use network 'full'");
            }
            (Network::Full, Outside::Never) => {
                return refuse("network", "has a template without internet access; use network 'none'");
            }
            (Network::None | Network::Full, _) => {}
        }
        let longest = self.lender.longest();
        if plan.limits.timeout > longest {
            let what = format!("limits runs to {} s; use a shorter timeout", longest.as_secs());
            return refuse("limits.timeout_ms", &what);
        }
        Ok(())
    }

    /// Creates a machine. If the caller stops waiting, it is deleted as soon as it exists.
    async fn lend(self: &Arc<Self>, terms: Terms) -> Result<Held, ProviderError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| closing())?;
        if *self.closing.borrow() {
            return Err(closing());
        }
        let (give, take) = oneshot::channel();
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let lent = shared.lender.borrow(terms).await;
            let held =
                lent.map(|lent| Held { lent, shared, permit: Some(permit), runtime: Handle::current() });
            let _sent = give.send(held);
        });
        take.await.unwrap_or_else(|_| Err(closing()))
    }
}

fn closing() -> ProviderError {
    ProviderError::Lost { message: "the provider is shutting down".to_owned() }
}

/// Returns a random name.
fn unique() -> Result<String, ProviderError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| ProviderError::Setup {
        step: "generate a random name".to_owned(),
        cause: error.to_string(),
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A machine in use. Dropping it deletes the machine.
#[derive(Debug)]
struct Held {
    lent: Lent,
    shared: Arc<Shared>,
    permit: Option<OwnedSemaphorePermit>,
    runtime: Handle,
}

impl Drop for Held {
    fn drop(&mut self) {
        let (lent, shared, permit) = (self.lent.clone(), Arc::clone(&self.shared), self.permit.take());
        self.runtime.spawn(async move {
            // On failure, the machine ends at the timeout set on creation.
            let _given_back = shared.lender.give_back(&lent).await;
            drop(permit);
        });
    }
}

/// A sandbox that runs each task on a new machine, one after another.
#[derive(Debug)]
struct RemoteSandbox {
    shared: Arc<Shared>,
    plan: Plan,
}

impl Sandbox for RemoteSandbox {
    fn run<'a>(
        &'a mut self,
        task: &'a Task,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<Outcome, ProviderError>> {
        Box::pin(self.run_on_one(task, sink, cancel))
    }
}

impl RemoteSandbox {
    async fn run_on_one(
        &self,
        task: &Task,
        sink: &mut dyn Sink,
        cancel: BoxFuture<'_, ()>,
    ) -> Result<Outcome, ProviderError> {
        let started = Instant::now();
        let terms = Terms { timeout: self.plan.limits.timeout, internet: self.plan.network == Network::Full };
        let mut shutting = self.shared.closing.subscribe();
        let work = async move {
            let held = self.shared.lend(terms).await?;
            task::run(&held, &self.plan, task, sink).await
        };
        // Dropping the future deletes its machine.
        let (ending, left) = tokio::select! {
            biased;
            () = cancel => (Ending::Cancelled, Left::default()),
            _ = shutting.wait_for(|closing| *closing) => return Err(closing()),
            done = work => done?,
        };
        let receipt = Receipt {
            provider: self.shared.lender.name(),
            kernel: Kernel::Remote,
            isolation: Vec::new(),
            warm: Warmth::Cold,
            simulated: false,
            service: Some(self.shared.lender.service()),
        };
        Ok(Outcome {
            ending,
            duration: started.elapsed(),
            usage: Usage::default(),
            result: left.result,
            artifacts: left.artifacts,
            findings: Vec::new(),
            receipt,
        })
    }
}
