//! Providers that run on a remote service. Each run creates one sandbox at the service, here called a
//! machine, and deletes it however the run ends.
//!
//! ```text
//! RemoteProvider ── service: e2b.rs or agentrun.rs ──▶ LeasedMachine ── files, commands ──▶ task.rs
//! ```
//!
//! - Isolation is the service's responsibility. Belljar enforces time and output limits by deleting the
//!   machine. The receipt names the service and no layer; `require`, and limits that are the service's, are
//!   refused before the service is asked for anything.
//! - Creating a machine goes on if the caller stops waiting, so that the machine is deleted. A permit counts
//!   each one until it is deleted.
//! - For the case that this process is killed, a machine also ends by itself: at a time set on creation (E2B),
//!   or when it is idle (AgentRun).

mod agentrun;
mod connect;
mod e2b;
mod http;
mod service_errors;
mod signature;
mod task;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::explain;
use belljar_engine::layer::Layer;
use belljar_engine::outcome::{Ending, Kernel, Outcome, Receipt, ServiceInfo};
use belljar_engine::plan::{Image, Network, Plan, Task};
use belljar_engine::provider::{
    BoxFuture, Capabilities, MissingLayer, Provider, ProviderError, Sink, SinkControl, Stream,
};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use crate::settings::{AgentRunSettings, E2bSettings};
use task::RemoteResults;

/// Requirements for a machine.
#[derive(Debug, Clone, Copy)]
struct MachineSpec {
    /// How long the program may run.
    timeout: Duration,
    /// Whether it may reach the internet.
    internet: bool,
}

/// A machine at the service.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RemoteMachine {
    id: String,
    /// The URL of its daemon.
    url: String,
    /// The access token of its daemon.
    token: Option<String>,
}

/// A command on a machine.
#[derive(Debug)]
struct RemoteCommand {
    words: Vec<String>,
    env: Vec<(String, String)>,
    workdir: String,
    /// Whether it is one of our scripts, which need full privileges.
    privileged: bool,
    /// The timeout.
    timeout: Duration,
    /// How much of each stream is kept.
    keep_bytes: u64,
}

/// Which network a service's machines have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InternetAccess {
    /// The internet on request.
    OnRequest,
    /// Always the internet.
    Always,
    /// No network.
    Never,
}

/// Receives the output of a command as it arrives.
type OutputHandler<'a> = &'a mut (dyn FnMut(Stream, &[u8]) -> SinkControl + Send);
type ServiceFuture<'a, T> = BoxFuture<'a, Result<T, ProviderError>>;

/// A service that provides machines.
trait RemoteService: Debug + Send + Sync {
    fn name(&self) -> &'static str;
    /// Returns the service's description for receipts.
    fn description(&self) -> ServiceInfo;
    /// Returns the longest time a program may run.
    fn max_run_time(&self) -> Duration;
    /// Returns how long after a program's end the service may take to report it.
    fn report_grace(&self) -> Duration;
    fn internet_access(&self) -> InternetAccess;
    /// Returns the user who must own a program's files, or an empty string if commands run as the owner
    /// anyway.
    fn file_owner(&self) -> &'static str;
    /// Checks that the service accepts requests.
    fn check(&self) -> ServiceFuture<'_, ()>;
    fn create(&self, spec: MachineSpec) -> ServiceFuture<'_, RemoteMachine>;
    fn write_file<'a>(
        &'a self,
        machine: &'a RemoteMachine,
        path: &'a str,
        content: Vec<u8>,
    ) -> ServiceFuture<'a, ()>;
    /// Reads a file up to a size limit.
    fn read_file<'a>(
        &'a self,
        machine: &'a RemoteMachine,
        path: &'a str,
        bound: u64,
    ) -> ServiceFuture<'a, Vec<u8>>;
    fn run<'a>(
        &'a self,
        machine: &'a RemoteMachine,
        command: RemoteCommand,
        on_output: OutputHandler<'a>,
    ) -> ServiceFuture<'a, Ending>;
    /// Deletes the machine. Succeeds if it is gone already.
    fn delete<'a>(&'a self, machine: &'a RemoteMachine) -> ServiceFuture<'a, ()>;
}

/// A provider whose sandboxes run at a remote service.
#[derive(Debug)]
pub struct RemoteProvider(Arc<RemoteShared>);

#[derive(Debug)]
struct RemoteShared {
    service: Box<dyn RemoteService>,
    permits: Arc<Semaphore>,
    /// The total number of permits.
    count: u32,
    closing: watch::Sender<bool>,
}

impl RemoteProvider {
    /// Creates the provider for E2B without connecting.
    ///
    /// # Errors
    /// Names the setting that is missing or wrong.
    pub fn e2b(settings: &E2bSettings) -> Result<Self, ProviderError> {
        Ok(Self::with_service(Box::new(e2b::E2b::new(settings)?), settings.sandboxes))
    }

    /// Creates the provider for Aliyun AgentRun without connecting.
    ///
    /// # Errors
    /// Names the setting that is missing or wrong.
    pub fn agentrun(settings: &AgentRunSettings) -> Result<Self, ProviderError> {
        Ok(Self::with_service(Box::new(agentrun::AgentRun::new(settings)?), settings.sandboxes))
    }

    fn with_service(service: Box<dyn RemoteService>, count: u32) -> Self {
        let permits = Arc::new(Semaphore::new(count as usize));
        Self(Arc::new(RemoteShared { service, permits, count, closing: watch::Sender::new(false) }))
    }
}

impl Provider for RemoteProvider {
    fn name(&self) -> &'static str {
        self.0.service.name()
    }

    fn capabilities(&self) -> Capabilities {
        let reason = format!("isolation is provided by the service at {}", self.0.service.description().host);
        let missing = |layer: &Layer| MissingLayer {
            layer: *layer,
            reason: reason.clone(),
            remedy: "use provider 'native' if Belljar must enforce it".to_owned(),
        };
        let missing = Layer::ALL.iter().map(missing).collect();
        Capabilities { missing, remote: true, ..Capabilities::default() }
    }

    fn run<'a>(
        &'a self,
        plan: &'a Plan,
        task: &'a Task,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<Outcome, ProviderError>> {
        Box::pin(async move {
            self.0.refuse_unsupported(plan)?;
            self.0.run_on_machine(plan, task, sink, cancel).await
        })
    }

    /// Checks that the service answers and accepts our key.
    fn self_test(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        self.0.service.check()
    }

    fn shut_down(&self) -> BoxFuture<'_, ()> {
        self.0.closing.send_replace(true);
        Box::pin(async {
            // A machine's permit is released only after it was deleted.
            let _all = self.0.permits.acquire_many(self.0.count).await;
        })
    }
}

impl RemoteShared {
    /// Refuses plans that the service cannot run.
    fn refuse_unsupported(&self, plan: &Plan) -> Result<(), ProviderError> {
        let name = self.service.name();
        let refuse =
            |field, what: &str| Err(ProviderError::unsupported(field, format!("provider '{name}' {what}")));
        if plan.image != Image::Host {
            return refuse("image", "runs its configured template; leave out image");
        }
        if plan.host_workspace.is_some() || !plan.mounts.is_empty() {
            return refuse("mount", "cannot mount folders or volumes of this machine; use files");
        }
        if !plan.package_layers.is_empty() {
            return refuse("dependencies", "has only the packages of its template; use --no-deps");
        }
        match (&plan.network, self.service.internet_access()) {
            (Network::Hosts(_) | Network::Internet(_), _) => {
                return refuse("network", "cannot restrict the network; use network 'none' or 'full'");
            }
            (Network::None, InternetAccess::Always) => {
                return refuse("network", "cannot block the internet; use network 'full'");
            }
            (Network::Full, InternetAccess::Never) => {
                return refuse("network", "has a template without internet access; use network 'none'");
            }
            (Network::None | Network::Full, _) => {}
        }
        let longest = self.service.max_run_time();
        if plan.limits.timeout > longest {
            let what = format!("limits runs to {} s; use a shorter timeout", longest.as_secs());
            return refuse("limits.timeout_ms", &what);
        }
        Ok(())
    }

    /// Creates a machine. If the caller stops waiting, it is deleted as soon as it exists.
    async fn create_machine(self: &Arc<Self>, spec: MachineSpec) -> Result<LeasedMachine, ProviderError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| shutting_down())?;
        if *self.closing.borrow() {
            return Err(shutting_down());
        }
        let (give, take) = oneshot::channel();
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let machine = shared.service.create(spec).await;
            let leased = machine.map(|machine| LeasedMachine {
                machine,
                shared,
                permit: Some(permit),
                runtime: Handle::current(),
            });
            let _sent = give.send(leased);
        });
        take.await.unwrap_or_else(|_| Err(shutting_down()))
    }

    /// Runs a task on a new machine.
    async fn run_on_machine(
        self: &Arc<Self>,
        plan: &Plan,
        task: &Task,
        sink: &mut dyn Sink,
        cancel: BoxFuture<'_, ()>,
    ) -> Result<Outcome, ProviderError> {
        let started = Instant::now();
        let spec = MachineSpec { timeout: plan.limits.timeout, internet: plan.network == Network::Full };
        let mut closing = self.closing.subscribe();
        let work = async move {
            let machine = self.create_machine(spec).await?;
            task::run(&machine, plan, task, sink).await
        };
        // Dropping the future deletes its machine.
        let (ending, RemoteResults { result, artifacts, skipped }) = tokio::select! {
            biased;
            () = cancel => (Ending::Cancelled, RemoteResults::default()),
            _ = closing.wait_for(|closing| *closing) => return Err(shutting_down()),
            done = work => done?,
        };
        let service = Some(self.service.description());
        let receipt = Receipt { service, ..Receipt::new(self.service.name(), Kernel::Remote) };
        let findings = explain::artifact_findings(&skipped, &plan.artifacts);
        Ok(Outcome { result, artifacts, findings, ..Outcome::new(ending, started.elapsed(), receipt) })
    }
}

fn shutting_down() -> ProviderError {
    ProviderError::lost("the provider is shutting down")
}

/// Returns a random name.
fn random_name() -> Result<String, ProviderError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| ProviderError::setup("generate a random name", error))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A machine in use. Dropping it deletes the machine.
#[derive(Debug)]
struct LeasedMachine {
    machine: RemoteMachine,
    shared: Arc<RemoteShared>,
    permit: Option<OwnedSemaphorePermit>,
    runtime: Handle,
}

impl Drop for LeasedMachine {
    fn drop(&mut self) {
        let (machine, shared, permit) = (self.machine.clone(), Arc::clone(&self.shared), self.permit.take());
        self.runtime.spawn(async move {
            // On failure, the machine ends at the timeout set on creation.
            let _given_back = shared.service.delete(&machine).await;
            drop(permit);
        });
    }
}
