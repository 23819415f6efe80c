//! A running container, as a sandbox.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar_egress::Egress;
use belljar_engine::explain;
use belljar_engine::finding::Finding;
use belljar_engine::layer::Layer;
use belljar_engine::limits::Limits;
use belljar_engine::network::HostRules;
use belljar_engine::outcome::{Ending, Kernel, Outcome, Receipt, Usage, Warmth};
use belljar_engine::plan::{Plan, Program, Task};
use belljar_engine::provider::{BoxFuture, ProviderError, Sink};
use belljar_engine::sandbox_handle::{
    ByteStream, Commands, Files, NetworkStats, SandboxError, SandboxFuture, SandboxHandle, SandboxPhase,
    SandboxStats,
};

use super::container::{Container, OwnedContainer};
use super::container_spec::ContainerSpec;
use super::daemon::Daemon;
use super::exit_cause::ExitCause;
use super::image::DockerImage;
use super::runtimes::search_path;
use super::{DockerShared, NAME, stats};
use crate::guest::prestart::PrestartedInterpreter;
use crate::guest::task::{PreparedTask, TaskRun};
use crate::guest::{self, GuestClient, Lifecycle, sandbox_environment};
use crate::program::FoundRuntime;

/// Time allowed for the stream to close after its container is removed.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A container in use.
#[derive(Debug)]
pub(super) struct DockerLiving {
    guest_client: GuestClient,
    lifecycle: Arc<ContainerLifecycle>,
    shared: Arc<DockerShared>,
    plan: Plan,
    /// The search path inside the container.
    path: String,
    /// Its egress, if it may reach individual hosts.
    egress: Option<Egress>,
    isolation: Vec<Layer>,
    kernel: Kernel,
    warm: Warmth,
    image: DockerImage,
    /// Whether it is for a single task; the shape of the container for the next task; the interpreter
    /// pre-started here.
    single_task: bool,
    next_spec: Option<ContainerSpec>,
    prestarted: Mutex<Option<PrestartedInterpreter>>,
    /// The usage when it was paused. It does not change until resumed, and a paused guest cannot be asked.
    paused_stats: Mutex<Option<SandboxStats>>,
}

/// The container, until it is killed or closed.
#[derive(Debug)]
struct ContainerLifecycle {
    daemon: Arc<Daemon>,
    id: String,
    owned: Mutex<Option<OwnedContainer>>,
}

impl Lifecycle for ContainerLifecycle {
    fn kill(&self) {
        drop(self.owned.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn exit_cause(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            if self.owned.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
                return "the sandbox was closed".to_owned();
            }
            self.daemon.exit_cause(&self.id).await.to_string()
        })
    }
}

impl DockerLiving {
    /// Creates one for a single task.
    pub(super) fn for_task(
        shared: &Arc<DockerShared>,
        plan: Plan,
        container: Container,
        warm: Warmth,
        next: Option<ContainerSpec>,
    ) -> Self {
        Self { next_spec: next, ..Self::new(shared, plan, container, warm, true) }
    }

    /// Creates one that stays until it is closed.
    pub(super) fn long_lived(shared: &Arc<DockerShared>, plan: Plan, container: Container) -> Self {
        Self::new(shared, plan, container, Warmth::Cold, false)
    }

    fn new(
        shared: &Arc<DockerShared>,
        mut plan: Plan,
        container: Container,
        warm: Warmth,
        fresh: bool,
    ) -> Self {
        let Container { guest, image, isolation, kernel, egress, prestarted: ahead, owned: made } = container;
        let daemon = Arc::clone(&shared.daemon);
        let kept =
            Arc::new(ContainerLifecycle { daemon, id: made.id.clone(), owned: Mutex::new(Some(made)) });
        let path = search_path(&plan, image.variables.path.as_deref());
        // Variables set by the image have the lowest precedence.
        let mut set = image.variables.env.clone();
        set.append(&mut plan.env);
        plan.env = set;
        let env = if fresh { BTreeMap::new() } else { sandbox_environment(&path, &plan) };
        Self {
            guest_client: GuestClient::new(guest, Arc::clone(&kept) as Arc<dyn Lifecycle>, env),
            lifecycle: kept,
            shared: Arc::clone(shared),
            plan,
            path,
            egress,
            isolation,
            kernel,
            warm,
            image,
            single_task: fresh,
            next_spec: None,
            prestarted: Mutex::new(ahead),
            paused_stats: Mutex::new(None),
        }
    }

    /// Returns the runtime for the task's language.
    async fn runtime(&self, task: &Task) -> Result<Option<FoundRuntime>, ProviderError> {
        let Program::Code { language, .. } = &task.program else { return Ok(None) };
        let name = self.plan.image.identity();
        self.shared.runtimes.find(&self.guest_client.guest, &self.image, language, &name).await.map(Some)
    }

    /// Takes the interpreter pre-started for this task, if any, and refills the pool for the next task like
    /// it.
    async fn take_prestarted(&self, ready: &PreparedTask<'_>) -> Option<PrestartedInterpreter> {
        let order = ready.prestart_spec();
        let waiting = self.prestarted.lock().unwrap_or_else(PoisonError::into_inner).take();
        let fits = waiting.as_ref().is_some_and(|ahead| ahead.matches(order.as_ref()));
        if let Some(shape) = &self.next_spec {
            self.shared.pool.refill(shape.clone(), self.image.clone(), order);
        }
        match waiting {
            Some(ahead) if !fits => {
                ahead.kill(&self.guest_client.guest).await;
                None
            }
            waiting => waiting,
        }
    }

    async fn read_stats(&self) -> Result<SandboxStats, SandboxError> {
        let at_rest = *self.paused_stats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stats) = at_rest.filter(|_| !self.guest_client.guest.is_gone()) {
            return Ok(stats);
        }
        let stats = stats::stats(&self.guest_client.guest, self.plan.host_workspace.is_some()).await;
        if self.guest_client.guest.is_gone() {
            return Err(SandboxError::Gone(self.lifecycle.exit_cause().await));
        }
        Ok(stats)
    }

    async fn set_paused(&self, paused: bool) -> Result<(), SandboxError> {
        if paused == self.guest_client.is_paused() {
            return Ok(());
        }
        let stats = self.read_stats().await?;
        let client = &self.shared.daemon.connection().await?.client;
        if paused {
            // From here on, calls that a paused guest would not answer fail at once.
            self.guest_client.set_paused(true);
        }
        let done = match paused {
            true => client.pause_container(&self.lifecycle.id).await,
            false => client.unpause_container(&self.lifecycle.id).await,
        };
        if paused == done.is_err() {
            self.guest_client.set_paused(false);
        }
        let explain = |error| self.shared.daemon.explain("pause or resume the container", &error);
        done.map_err(explain)?;
        *self.paused_stats.lock().unwrap_or_else(PoisonError::into_inner) = paused.then_some(stats);
        Ok(())
    }

    /// Returns the outcome of a task whose container ended. In a single-task container, hitting a limit is
    /// the task's own ending.
    async fn outcome_of_ended_container(
        &self,
        why: String,
        started: Instant,
    ) -> Result<Outcome, SandboxError> {
        let cause = self.lifecycle.daemon.exit_cause(&self.lifecycle.id).await;
        let Some(limit) = cause.limit().filter(|_| self.single_task) else {
            // Depending on what was under way, `why` may only say that the connection closed.
            let lost_daemon = matches!(cause, ExitCause::Unreachable(_));
            return Err(SandboxError::Gone(if lost_daemon { cause.to_string() } else { why }));
        };
        Ok(Outcome {
            ending: Ending::LimitHit(limit, None),
            duration: started.elapsed(),
            usage: Usage::default(),
            result: None,
            artifacts: Vec::new(),
            findings: Vec::new(),
            receipt: self.receipt().await?,
        })
    }

    async fn remove_container(&self) {
        let made = self.lifecycle.owned.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(removing) = made.and_then(|mut made| made.remove()) {
            let _removed = removing.await;
            // The stream closes with the container. If the daemon is gone, it has closed already.
            let _gone = tokio::time::timeout(DISCONNECT_TIMEOUT, self.guest_client.guest.gone()).await;
        }
        if let Some(egress) = &self.egress {
            egress.close().await;
        }
    }
}

impl SandboxHandle for DockerLiving {
    fn state(&self) -> SandboxPhase {
        match (self.guest_client.guest.is_gone(), self.guest_client.is_paused()) {
            (true, _) => SandboxPhase::Ended,
            (false, true) => SandboxPhase::Paused,
            (false, false) => SandboxPhase::Running,
        }
    }

    fn commands(&self) -> &dyn Commands {
        &self.guest_client
    }

    fn files(&self) -> &dyn Files {
        &self.guest_client
    }

    fn run<'a>(
        &'a self,
        task: &'a Task,
        limits: &'a Limits,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> SandboxFuture<'a, Outcome> {
        Box::pin(async move {
            let (mark, started) = (self.egress.as_ref().map(Egress::mark), Instant::now());
            let errand = TaskRun {
                task,
                limits,
                plan: &self.plan,
                runtime: self.runtime(task).await?,
                path: &self.path,
                single_task: self.single_task && self.plan.host_workspace.is_none(),
                exclusive: self.single_task,
                artifact_rules: &self.shared.artifacts.0,
                commands: &self.guest_client,
                denials: None,
            };
            let ready = errand.prepare();
            let ahead = self.take_prestarted(&ready).await;
            let mut outcome = match ready.run(self, ahead, sink, cancel).await {
                Err(SandboxError::Gone(why)) => self.outcome_of_ended_container(why, started).await?,
                outcome => outcome?,
            };
            if let Some((egress, mark)) = self.egress.as_ref().zip(mark) {
                outcome.findings.extend(egress.findings_since(&mark));
            }
            Ok(outcome)
        })
    }

    fn open_port(&self, port: u16) -> SandboxFuture<'_, ByteStream> {
        Box::pin(async move {
            let stream = self
                .guest_client
                .convert_result(self.guest_client.running_guest()?.open_port(port).await)
                .await?;
            Ok(Box::pin(stream) as ByteStream)
        })
    }

    fn pause(&self) -> SandboxFuture<'_, ()> {
        Box::pin(self.set_paused(true))
    }

    fn resume(&self) -> SandboxFuture<'_, ()> {
        Box::pin(self.set_paused(false))
    }

    fn halt(&self, why: String) -> SandboxFuture<'_, ()> {
        // First stop new commands from starting. One that has just started is found when the caller repeats
        // this.
        self.guest_client.set_halted(Some(why));
        Box::pin(async {
            self.guest_client.convert_result(self.guest_client.running_guest()?.end_all().await).await
        })
    }

    fn release(&self) {
        self.guest_client.set_halted(None);
    }

    fn halt_reason(&self) -> Option<String> {
        self.guest_client.halted()
    }

    fn receipt(&self) -> SandboxFuture<'_, Receipt> {
        let receipt = Receipt {
            provider: NAME,
            kernel: self.kernel,
            isolation: self.isolation.clone(),
            warm: self.warm,
            simulated: false,
            instead_of: None,
            service: None,
        };
        Box::pin(std::future::ready(Ok(receipt)))
    }

    fn stats(&self) -> SandboxFuture<'_, SandboxStats> {
        Box::pin(self.read_stats())
    }

    fn denial_findings(&self) -> SandboxFuture<'_, Vec<Finding>> {
        Box::pin(async {
            let SandboxStats { forks_refused, memory_kills, disk_full, .. } = self.read_stats().await?;
            let kept =
                explain::Denials { forks_refused, memory_kills, disk_full, ..explain::Denials::default() };
            let mut findings = explain::denial_findings(&kept, Ending::Exited(0), &self.plan.limits);
            findings.extend(self.egress.iter().flat_map(Egress::findings));
            Ok(findings)
        })
    }

    fn network_stats(&self) -> Option<NetworkStats> {
        self.egress.as_ref().map(guest::network_use)
    }

    fn set_hosts(&self, rules: HostRules) -> Result<(), SandboxError> {
        let egress = self.egress.as_ref().ok_or_else(SandboxError::hosts_not_changeable)?;
        egress.set_rules(rules);
        Ok(())
    }

    fn ended(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            self.guest_client.guest.gone().await;
            self.lifecycle.exit_cause().await
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.remove_container())
    }
}
