//! Docker: one container per run, hardened from the same tables as a jail, with this program's guest as PID
//! 1.
//!
//! ```text
//! Docker ── daemon ──▶ container ── attach ──▶ guest (PID 1) ──▶ program     backend.rs: its container as a Backend
//! pool: idle containers, each used once
//! ```
//!
//! When this process ends for any reason, its attach connections close, so its containers end and Docker
//! removes them. Containers that a dead process left are found by their label when the daemon is first
//! needed.
//!
//! A permit counts a container from before it is created until it is removed, so shutting down means waiting
//! for all permits.

mod attach_stream;
mod backend;
mod builder;
mod container;
mod container_spec;
mod daemon;
mod dev;
mod egress;
mod exit_cause;
mod guest_bundle;
mod image;
mod pool;
mod process_identity;
mod receipt;
mod runtimes;
mod seccomp_profile;
mod stats;
mod user_ids;

use std::sync::Arc;
use std::time::Instant;

use belljar_engine::language::Language;
use belljar_engine::layer::Layer;
use belljar_engine::outcome::{Ending, Kernel, Outcome, Receipt, Warmth};
use belljar_engine::plan::{Image, Plan, Program, Task};
use belljar_engine::provider::{
    BoxFuture, Capabilities, DiscardSink, ImageChoice, IsolationStrength, MissingLayer, PoolMetrics,
    Provider, ProviderError, Sink,
};
use belljar_engine::sandbox_handle::{
    Failure, FailureKind, SandboxCapabilities, SandboxError, SandboxHandle,
};

use crate::egress::with_proxy_environment;
use crate::guest_sandbox::CANNOT_ADD_PACKAGES;
use container::Container;
use container_spec::ContainerSpec;
use daemon::Daemon;
use pool::ContainerPool;
use runtimes::ImageRuntimes;

pub use crate::settings::DockerSettings as Settings;
pub use builder::ImageBuilder;

/// Name in requests and receipts.
pub const NAME: &str = "docker";

/// Returns which kernel programs run on.
fn kernel(settings: &Settings) -> Kernel {
    match settings.runtime.as_deref() {
        Some(name) if name.starts_with("runsc") => Kernel::Gvisor,
        _ => Kernel::Host,
    }
}

/// The Docker provider.
#[derive(Debug)]
pub struct Docker(Arc<DockerShared>);

/// State shared by all sandboxes of the provider.
#[derive(Debug)]
struct DockerShared {
    daemon: Arc<Daemon>,
    pool: Arc<ContainerPool>,
    runtimes: ImageRuntimes,
}

impl Docker {
    /// Checks that the daemon can give GPUs to containers.
    ///
    /// # Errors
    /// It cannot be reached, or has no runtime for that.
    pub async fn check_gpus(&self) -> Result<(), ProviderError> {
        let daemon = &self.0.daemon;
        daemon.check_gpus(daemon.connection().await?).await
    }

    /// Creates the provider without connecting. An unreachable daemon fails each run that needs it until it
    /// is back.
    pub fn new(settings: Settings) -> Self {
        let daemon = Arc::new(Daemon::new(settings));
        let pool = ContainerPool::new(&daemon);
        Self(Arc::new(DockerShared { daemon, pool, runtimes: ImageRuntimes::default() }))
    }
}

impl Provider for Docker {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        let missing = |layer, reason: &str, remedy: &str| MissingLayer {
            layer,
            reason: reason.to_owned(),
            remedy: remedy.to_owned(),
        };
        let mut lacks = vec![
            missing(
                Layer::UserNs,
                "user ids inside a container are host ids, though no real user's",
                "set userns-remap in Docker's daemon.json, or use provider 'native'",
            ),
            missing(Layer::Landlock, "Docker does not support it", "use provider 'native'"),
        ];
        let settings = &self.0.daemon.settings;
        let kernel = kernel(settings);
        if kernel == Kernel::Gvisor {
            let why = "gVisor limits the bytes of a tmpfs, but not the number of files";
            lacks.push(missing(Layer::DiskQuota, why, "use runtime 'runc', or provider 'native'"));
        }
        // This process serves the container's listening sockets, which works only on the host's kernel, not
        // in gVisor. Installers need this egress.
        let single_hosts = kernel != Kernel::Gvisor;
        Capabilities {
            strength: Some(IsolationStrength::new(kernel, lacks.len())),
            missing: lacks,
            host_paths: true,
            package_layers: single_hosts,
            remote: false,
            single_hosts,
            // gVisor shows its programs no device of the host.
            gpus: settings.gpus && kernel != Kernel::Gvisor,
            images: ImageChoice::Named {
                default_image: settings.image.clone(),
                allowed: settings.images.clone(),
            },
            sandboxes: Some(SandboxCapabilities {
                cannot_pause: None,
                cannot_add_packages: Some(CANNOT_ADD_PACKAGES.to_owned()),
                cannot_write_root: Some("provider 'docker' has read-only roots only".to_owned()),
                cannot_use_disk_file: Some("provider 'docker' has disks in memory only".to_owned()),
            }),
        }
    }

    fn runtime_identity<'a>(
        &'a self,
        language: &'static Language,
        image: &'a Image,
    ) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let (Image::Named(name), daemon) = (image, &self.0.daemon) else { return None };
            let image = daemon.image(daemon.connection().await.ok()?, name, &mut DiscardSink).await.ok()?;
            Some(format!("docker {} {}", image.id, language.name))
        })
    }

    fn run<'a>(
        &'a self,
        plan: &'a Plan,
        task: &'a Task,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<Outcome, ProviderError>> {
        Box::pin(self.run_in_container(plan, task, sink, cancel))
    }

    fn open<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Result<Box<dyn SandboxHandle>, ProviderError>> {
        Box::pin(async move {
            let spec = ContainerSpec::from_plan(plan)?;
            let container = self.0.create_container(&spec, &mut DiscardSink).await?;
            let sandbox = container.into_long_lived_sandbox(&self.0, with_proxy_environment(plan));
            Ok(Box::new(sandbox) as Box<dyn SandboxHandle>)
        })
    }

    /// Checks that the daemon answers, knows the runtime, and has the image.
    fn self_test(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        Box::pin(async {
            let connected = self.0.daemon.connection().await?;
            self.0.daemon.check_runtime(connected).await?;
            self.0.daemon.image(connected, &self.0.daemon.settings.image, &mut DiscardSink).await.map(drop)
        })
    }

    fn pools(&self) -> BoxFuture<'_, Vec<PoolMetrics>> {
        Box::pin(std::future::ready(self.0.pool.metrics()))
    }

    fn shut_down(&self) -> BoxFuture<'_, ()> {
        self.0.pool.close();
        Box::pin(self.0.daemon.wait_for_removals())
    }
}

impl Docker {
    async fn run_in_container(
        &self,
        plan: &Plan,
        task: &Task,
        sink: &mut dyn Sink,
        mut cancel: BoxFuture<'_, ()>,
    ) -> Result<Outcome, ProviderError> {
        let (started, shared) = (Instant::now(), &self.0);
        let (spec, plan) = (ContainerSpec::from_plan(plan)?, with_proxy_environment(plan));
        let (container, warm) = match shared.pool.take_idle(&spec, language(task)) {
            Some(container) => (container, Warmth::Pool),
            None => {
                let created = tokio::select! {
                    biased;
                    () = &mut cancel => {
                        // No container existed.
                        let receipt = Receipt::new(NAME, Kernel::Host);
                        return Ok(Outcome::new(Ending::Cancelled, started.elapsed(), receipt));
                    }
                    created = shared.create_container(&spec, sink) => created?,
                };
                (created, Warmth::Cold)
            }
        };
        let (limits, next) = (plan.limits, spec.can_be_pooled().then_some(spec));
        let sandbox = container.into_single_task_sandbox(shared, plan, warm, next);
        let outcome = sandbox.run(task, &limits, sink, cancel).await;
        let outcome = outcome.map_err(|error| to_provider_error(error, task))?;
        Ok(Outcome { duration: started.elapsed(), ..outcome })
    }
}

impl DockerShared {
    /// Creates a container that was never used.
    async fn create_container(
        &self,
        spec: &ContainerSpec,
        sink: &mut dyn Sink,
    ) -> Result<Container, ProviderError> {
        let image = self.daemon.image(self.daemon.connection().await?, &spec.image, sink).await?;
        Container::create(&self.daemon, spec, image).await
    }
}

fn language(task: &Task) -> Option<&'static str> {
    match &task.program {
        Program::Code { language, .. } => Some(language.name),
        Program::Command(_) => None,
    }
}

/// Converts an error of a sandbox to one of a one-shot run.
fn to_provider_error(error: SandboxError, task: &Task) -> ProviderError {
    match error {
        SandboxError::Provider(error) => error,
        SandboxError::Failed(failure) => failure_to_provider_error(failure, task),
        SandboxError::Gone(message) => ProviderError::lost(message),
        other => ProviderError::lost(other),
    }
}

/// Converts a failure. A missing program or folder is an error in the request, and retrying would not help.
fn failure_to_provider_error(failure: Failure, task: &Task) -> ProviderError {
    let Failure { kind, subject, message } = failure;
    let errno = match kind {
        FailureKind::NotFound => "ENOENT",
        FailureKind::Denied => "EACCES",
        FailureKind::NotADirectory => "ENOTDIR",
        FailureKind::NoSpace => {
            let message = format!("{subject}: {message}; raise limits.disk_bytes");
            return ProviderError::Invalid { field: "files", message };
        }
        _ => return ProviderError::setup(format!("start {subject}"), message),
    };
    if subject == task.workdir {
        return ProviderError::Invalid {
            field: "workdir",
            message: format!("enter folder {subject}: {errno}"),
        };
    }
    let message = format!(
        "execute {subject}: {errno} ({message}); the image has no such program, or it cannot be executed"
    );
    ProviderError::Invalid { field: "command", message }
}
