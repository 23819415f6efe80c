//! Somebody else's machines: each run borrows one, and gives it back however it ends.
//!
//! ```text
//! Remote ── lender: E2B or AgentRun ──▶ Held: a machine ── files, commands ──▶ task.rs
//! ```
//!
//! What keeps a program in there is the service's word. Belljar enforces time and output, by giving the machine back.

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

/// What a machine is borrowed for.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// How long the program may run.
    timeout: Duration,
    /// Whether it may reach the internet.
    internet: bool,
}

/// A machine of a lender's.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lent {
    id: String,
    /// Where it is spoken to.
    url: String,
    /// What lets us in there.
    token: Option<String>,
}

/// A command on a machine.
#[derive(Debug)]
struct Command {
    words: Vec<String>,
    env: Vec<(String, String)>,
    workdir: String,
    /// Whether it is ours and needs every right.
    ours: bool,
    /// How long it may take.
    timeout: Duration,
    /// How much of each stream will be kept.
    keep: u64,
}

/// What machines of a lender's reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outside {
    /// The internet, where that is asked for.
    AsAsked,
    /// The internet.
    Always,
    /// Nothing.
    Never,
}

/// Takes the output of a command as it comes.
type Ear<'a> = &'a mut (dyn FnMut(Stream, &[u8]) -> Flow + Send);
type Asked<'a, T> = BoxFuture<'a, Result<T, ProviderError>>;

/// A service that lends machines.
trait Lender: Debug + Send + Sync {
    fn name(&self) -> &'static str;
    /// Who it is, for receipts.
    fn service(&self) -> Service;
    /// The longest that a program may run there.
    fn longest(&self) -> Duration;
    /// How much later than its program's end a lender may know of it.
    fn grace(&self) -> Duration;
    fn outside(&self) -> Outside;
    /// The user whose files a program's are; none where commands are that user's anyway.
    fn user(&self) -> &'static str;
    /// Whether it would lend us something.
    fn check(&self) -> Asked<'_, ()>;
    fn borrow(&self, terms: Terms) -> Asked<'_, Lent>;
    fn put<'a>(&'a self, lent: &'a Lent, path: &'a str, content: Vec<u8>) -> Asked<'a, ()>;
    /// A file that is no longer than it may be.
    fn get<'a>(&'a self, lent: &'a Lent, path: &'a str, bound: u64) -> Asked<'a, Vec<u8>>;
    fn run<'a>(&'a self, lent: &'a Lent, command: Command, ear: Ear<'a>) -> Asked<'a, Ending>;
    /// Gives it back. One that is gone already is no error.
    fn give_back<'a>(&'a self, lent: &'a Lent) -> Asked<'a, ()>;
}

/// A provider whose machines are somebody else's.
#[derive(Debug)]
pub struct Remote(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    lender: Box<dyn Lender>,
    permits: Arc<Semaphore>,
    /// How many of those there are.
    count: u32,
    closing: watch::Sender<bool>,
}

impl Remote {
    /// Machines of E2B's. Speaks to nobody yet.
    ///
    /// # Errors
    /// Names the setting that is missing or wrong.
    pub fn e2b(settings: &E2bSettings) -> Result<Self, ProviderError> {
        Ok(Self::over(Box::new(e2b::E2b::new(settings)?), settings.sandboxes))
    }

    /// Machines of Aliyun AgentRun's. Speaks to nobody yet.
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
        let reason = format!("isolation is that of the service at {}", self.0.lender.service().host);
        let missing = |layer: &Layer| MissingLayer {
            layer: *layer,
            reason: reason.clone(),
            remedy: "use provider 'native' where Belljar is to enforce it".to_owned(),
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

    /// The service answers, and takes our key.
    fn check(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        self.0.lender.check()
    }

    fn pools(&self) -> BoxFuture<'_, Vec<PoolMetrics>> {
        Box::pin(std::future::ready(Vec::new()))
    }

    fn shut_down(&self) -> BoxFuture<'_, ()> {
        self.0.closing.send_replace(true);
        Box::pin(async {
            // A machine's permit is free when it was given back, and not before.
            let _all = self.0.permits.acquire_many(self.0.count).await;
        })
    }
}

impl Shared {
    /// Refuses what the service cannot do.
    fn admit(&self, plan: &Plan) -> Result<(), ProviderError> {
        let name = self.lender.name();
        let refuse = |field, what: &str| {
            let message = format!("provider '{name}' {what}");
            Err(ProviderError::Unsupported { field, message })
        };
        if plan.image != Image::Host {
            return refuse("image", "runs the template that is configured for it; name no image");
        }
        if plan.playground.is_some() || !plan.mounts.is_empty() {
            return refuse("mount", "shows no folders and volumes of this machine; give files");
        }
        if !plan.package_layers.is_empty() {
            return refuse("dependencies", "has the packages of its template only; use --no-deps");
        }
        match (&plan.network, self.lender.outside()) {
            (Network::Hosts(_), _) => return refuse("network", "cannot let out to single hosts"),
            (Network::None, Outside::Always) => {
                return refuse("network", "cannot keep a program from the internet; ask for network 'full'");
            }
            (Network::Full, Outside::Never) => {
                return refuse("network", "has a template without the internet; ask for network 'none'");
            }
            (Network::None | Network::Full, _) => {}
        }
        let longest = self.lender.longest();
        if plan.limits.timeout > longest {
            let what = format!("runs nothing for longer than {} s; ask for less", longest.as_secs());
            return refuse("limits.timeout_ms", &what);
        }
        Ok(())
    }

    /// Borrows a machine. Whoever stops waiting for it has it given back as soon as there is one.
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
            let _nobody_waits = give.send(held);
        });
        take.await.unwrap_or_else(|_| Err(closing()))
    }
}

fn closing() -> ProviderError {
    ProviderError::Lost { message: "this provider is being shut down".to_owned() }
}

/// A name that nothing else has.
fn unique() -> Result<String, ProviderError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| ProviderError::Setup {
        step: "draw a random name".to_owned(),
        cause: error.to_string(),
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A machine that is ours for the time being. Dropped, it is given back.
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
            // One that cannot be given back has an end that was agreed on when it was borrowed.
            let _given_back = shared.lender.give_back(&lent).await;
            drop(permit);
        });
    }
}

/// A place in which tasks run one after the other, each on a machine of its own.
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
        // What is dropped here gives its machine back.
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
