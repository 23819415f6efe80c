//! The container of a sandbox. The daemon pauses and ends it; the guest measures it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_engine::language::Language;
use belljar_engine::layer::Layer;
use belljar_engine::outcome::{Kernel, Limit, NetworkReceipt, Receipt, Warmth};
use belljar_engine::plan::{Network, Plan};
use belljar_engine::provider::{BoxFuture, ProviderError};
use belljar_engine::sandbox_handle::{SandboxError, SandboxFuture, SandboxStats};
use belljar_guest::Guest;

use super::container::{Container, OwnedContainer};
use super::container_spec::ContainerSpec;
use super::exit_cause::ExitCause;
use super::image::DockerImage;
use super::runtimes::search_path;
use super::{DockerShared, NAME, stats};
use crate::guest_sandbox::{Backend, GuestSandbox, PrestartSpec, PrestartedInterpreter};
use crate::program::FoundRuntime;

/// Time allowed for the stream to close after its container is removed.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The container of a sandbox.
#[derive(Debug)]
struct ContainerBackend {
    guest: Guest,
    shared: Arc<DockerShared>,
    id: String,
    /// The container, until it is killed or closed.
    owned: Mutex<Option<OwnedContainer>>,
    image: DockerImage,
    /// The image's name in requests.
    image_name: String,
    has_host_workspace: bool,
    isolation: Vec<Layer>,
    kernel: Kernel,
    warm: Warmth,
    single_task: Option<SingleTask>,
    /// The usage when it was paused, which does not change until it is resumed: a paused guest cannot be
    /// asked.
    paused_stats: Mutex<Option<SandboxStats>>,
}

/// The parts of a container for a single task that others lack.
#[derive(Debug)]
struct SingleTask {
    /// The container to start for the next task, if one is started in advance.
    next: Option<ContainerSpec>,
    /// The interpreter pre-started in this container.
    prestarted: Mutex<Option<PrestartedInterpreter>>,
}

impl Container {
    /// Turns the container into a sandbox for a single task. A container like `next` is started for the next
    /// task.
    pub(super) fn into_single_task_sandbox(
        mut self,
        shared: &Arc<DockerShared>,
        plan: Plan,
        warm: Warmth,
        next: Option<ContainerSpec>,
    ) -> GuestSandbox {
        let single_task = SingleTask { next, prestarted: Mutex::new(self.prestarted.take()) };
        self.into_sandbox(shared, plan, warm, Some(single_task))
    }

    /// Turns the container into a sandbox that stays until it is closed.
    pub(super) fn into_long_lived_sandbox(self, shared: &Arc<DockerShared>, plan: Plan) -> GuestSandbox {
        self.into_sandbox(shared, plan, Warmth::Cold, None)
    }

    fn into_sandbox(
        self,
        shared: &Arc<DockerShared>,
        mut plan: Plan,
        warm: Warmth,
        single_task: Option<SingleTask>,
    ) -> GuestSandbox {
        let Self { guest, image, isolation, kernel, egress, owned, .. } = self;
        let path = search_path(&plan, image.variables.path.as_deref());
        // Variables set by the image have the lowest precedence.
        let mut env = image.variables.env.clone();
        env.append(&mut plan.env);
        plan.env = env;
        let backend = ContainerBackend {
            guest: guest.clone(),
            shared: Arc::clone(shared),
            id: owned.id.clone(),
            owned: Mutex::new(Some(owned)),
            image,
            image_name: plan.image.identity().into_owned(),
            has_host_workspace: plan.host_workspace.is_some(),
            isolation,
            kernel,
            warm,
            single_task,
            paused_stats: Mutex::new(None),
        };
        GuestSandbox::new(guest, backend, plan, path, egress)
    }
}

impl ContainerBackend {
    fn lock_owned(&self) -> MutexGuard<'_, Option<OwnedContainer>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_paused_stats(&self) -> MutexGuard<'_, Option<SandboxStats>> {
        self.paused_stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read_stats(&self) -> Result<SandboxStats, SandboxError> {
        let paused_stats = *self.lock_paused_stats();
        if let Some(stats) = paused_stats.filter(|_| !self.guest.is_gone()) {
            return Ok(stats);
        }
        let stats = stats::stats(&self.guest, self.has_host_workspace).await;
        if self.guest.is_gone() {
            return Err(SandboxError::Gone(self.exit_cause().await));
        }
        Ok(stats)
    }

    async fn set_paused(&self, paused: bool) -> Result<(), SandboxError> {
        if paused == self.lock_paused_stats().is_some() {
            return Ok(());
        }
        let stats = self.read_stats().await?;
        let daemon = &self.shared.daemon;
        let client = &daemon.connection().await?.client;
        let done = match paused {
            true => client.pause_container(&self.id).await,
            false => client.unpause_container(&self.id).await,
        };
        done.map_err(|error| daemon.explain("pause or resume the container", &error))?;
        *self.lock_paused_stats() = paused.then_some(stats);
        Ok(())
    }

    /// Takes the pre-started interpreter if it suits the task, and refills the pool for the next task like it.
    async fn take_suitable(&self, spec: Option<PrestartSpec>) -> Option<PrestartedInterpreter> {
        let SingleTask { next, prestarted } = self.single_task.as_ref()?;
        let prestarted = prestarted.lock().unwrap_or_else(PoisonError::into_inner).take();
        let suits = prestarted.as_ref().is_some_and(|prestarted| prestarted.matches(spec.as_ref()));
        if let Some(next) = next {
            self.shared.pool.refill(next.clone(), self.image.clone(), spec);
        }
        match prestarted {
            Some(prestarted) if !suits => {
                prestarted.kill(&self.guest).await;
                None
            }
            prestarted => prestarted,
        }
    }

    async fn remove(&self) {
        let removal = self.lock_owned().take().and_then(|mut owned| owned.remove());
        if let Some(removal) = removal {
            let _removed = removal.await;
            // The stream closes with the container. If the daemon is gone, it has closed already.
            let _gone = tokio::time::timeout(DISCONNECT_TIMEOUT, self.guest.gone()).await;
        }
    }
}

impl Backend for ContainerBackend {
    fn pause(&self) -> SandboxFuture<'_, ()> {
        Box::pin(self.set_paused(true))
    }

    fn resume(&self) -> SandboxFuture<'_, ()> {
        Box::pin(self.set_paused(false))
    }

    fn stats(&self) -> SandboxFuture<'_, SandboxStats> {
        Box::pin(self.read_stats())
    }

    fn receipt(&self) -> SandboxFuture<'_, Receipt> {
        let (isolation, warm) = (self.isolation.clone(), self.warm);
        // Without `net_ns`, the container is in Docker's own network.
        let bridge = || NetworkReceipt {
            mode: Network::Full.mode(),
            enforced_by: &[],
            reaches: "Docker's network: everything that the host can reach",
        };
        let network = (!isolation.contains(&Layer::NetNs)).then(bridge);
        let receipt = Receipt { isolation, warm, network, ..Receipt::new(NAME, self.kernel) };
        Box::pin(std::future::ready(Ok(receipt)))
    }

    fn runtime(&self, language: &'static Language) -> BoxFuture<'_, Result<FoundRuntime, ProviderError>> {
        Box::pin(self.shared.runtimes.find(&self.guest, &self.image, language, &self.image_name))
    }

    fn kill(&self) {
        drop(self.lock_owned().take());
    }

    fn exit_cause(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            if self.lock_owned().is_none() {
                return "the sandbox was closed".to_owned();
            }
            match self.shared.daemon.exit_cause(&self.id).await {
                // Tenants read this; the daemon's address is in the provider's health.
                ExitCause::Unreachable(_) => "the Docker daemon became unreachable".to_owned(),
                cause => cause.to_string(),
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.remove())
    }

    fn is_for_single_task(&self) -> bool {
        self.single_task.is_some()
    }

    fn take_prestarted(&self, spec: Option<PrestartSpec>) -> BoxFuture<'_, Option<PrestartedInterpreter>> {
        Box::pin(self.take_suitable(spec))
    }

    fn limit_at_exit(&self, why: String) -> SandboxFuture<'_, Limit> {
        Box::pin(async {
            let cause = self.shared.daemon.exit_cause(&self.id).await;
            let limit = cause.limit().filter(|_| self.single_task.is_some());
            let lost_daemon = matches!(cause, ExitCause::Unreachable(_));
            limit.ok_or_else(|| SandboxError::Gone(if lost_daemon { cause.to_string() } else { why }))
        })
    }
}
