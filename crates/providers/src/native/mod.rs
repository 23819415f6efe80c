//! The native provider: sandboxes on this machine's kernel, through the jail. Needs no daemon, no Docker and
//! no root.
//!
//! ```text
//! Plan ─▶ paths.rs: host paths ─▶ runtimes.rs: interpreter ─▶ roots.rs: root tree ─▶ LauncherRequest::Start
//! Task ─▶ program.rs: commands, files ─▶ run.rs: pipes, payload ──────────────────▶        │
//! Outcome ◀── run_io.rs: output, result, artifacts ◀── LauncherEvent::Ended ◀──────────────┘
//! ```
//!
//! A launcher that dies is replaced (`launcher_handle.rs`), and a run that it lost runs again if no effect of
//! the first attempt is visible (`run.rs`).

mod connection;
pub(crate) mod egress;
mod launcher_handle;
mod living;
mod mismatches;
pub(crate) mod paths;
pub mod places;
pub(crate) mod roots;
pub(crate) mod run;
mod run_io;
pub(crate) mod runtimes;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use belljar_engine::language::{LANGUAGES, Language};
use belljar_engine::layer::Layer;
use belljar_engine::outcome::{Kernel, Outcome};
use belljar_engine::plan::{Image, Network, Plan, Program, Task};
use belljar_engine::provider::{
    BoxFuture, Capabilities, ConfinementMismatch, ImageChoice, LongestTurns, MissingLayer, PoolMetrics,
    Provider, ProviderError, Sandbox, Sink,
};
use belljar_engine::provider_set::IsolationStrength;
use belljar_engine::sandbox_handle::{SandboxCapabilities, SandboxHandle};
use belljar_engine::warm::WarmSettings;
use belljar_jail::launcher::Launcher;
use belljar_jail::spec;

use launcher_handle::LauncherHandle;
use roots::{NumberedRoot, RootBuilder};
use run::ArtifactLimits;

/// Runs the launcher, or the guest of a sandbox, if this process was started as one. In that case it never
/// returns.
///
/// Call it first in `main`, before any thread exists or any file is open.
pub fn run_if_asked() {
    belljar_jail::launcher::run_if_asked();
    belljar_guest::run_if_asked();
}

/// A launcher that was started but not yet connected to: it sets itself up in parallel.
#[derive(Debug)]
pub struct SpawnedLauncher {
    launcher: Launcher,
    total_memory_bytes: Option<u64>,
}

impl SpawnedLauncher {
    /// Starts the launcher by executing this binary again.
    ///
    /// # Errors
    /// Names the step that failed.
    pub fn start() -> Result<Self, ProviderError> {
        let failed = |error: std::io::Error| ProviderError::Setup {
            step: "start the launcher".to_owned(),
            cause: error.to_string(),
        };
        let launcher = Launcher::start().map_err(failed)?;
        Ok(Self { launcher, total_memory_bytes: None })
    }

    /// Limits the memory of all sandboxes together to less than the machine could provide.
    #[must_use]
    pub fn with_total_memory(self, bytes: Option<u64>) -> Self {
        Self { total_memory_bytes: bytes, ..self }
    }
}

/// Returns what image `host` shows of this machine.
pub fn host_root() -> spec::RootTree {
    roots::host_tree()
}

/// The native provider.
#[derive(Debug)]
pub struct Native {
    shared: Arc<NativeShared>,
    missing: Vec<MissingLayer>,
    no_freezer: Option<String>,
}

/// State shared by all sandboxes of the provider.
#[derive(Debug)]
struct NativeShared {
    link: LauncherHandle,
    roots: RootBuilder,
    artifacts: ArtifactLimits,
}

/// Whether a language can run in image `host`, and by which program.
#[derive(Debug)]
pub struct LanguageState {
    /// The language.
    pub language: &'static Language,
    /// The program that runs it.
    pub program: Option<PathBuf>,
}

impl Native {
    /// Connects to a launcher. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Names the launcher's set-up step that failed.
    pub async fn connect(launched: SpawnedLauncher, warm: WarmSettings) -> Result<Self, ProviderError> {
        // Done while the launcher sets itself up.
        let roots = RootBuilder::new();
        let settings = spec::LauncherSettings { warm, total_memory_bytes: launched.total_memory_bytes };
        let (link, host) = LauncherHandle::open(launched, settings).await?;
        Ok(Self {
            shared: Arc::new(NativeShared { link, roots, artifacts: ArtifactLimits::default() }),
            missing: host.missing,
            no_freezer: host.no_freezer,
        })
    }

    /// Returns every language with the program that runs it.
    pub fn languages(&self) -> Vec<LanguageState> {
        let state = |language| {
            let program = self
                .shared
                .roots
                .runtime(language, &Image::Host)
                .ok()
                .map(|found| found.found.program.into());
            LanguageState { language, program }
        };
        LANGUAGES.iter().map(state).collect()
    }

    /// Returns a string that changes with the program that runs a language.
    fn runtime_identity(&self, language: &'static Language, image: &Image) -> Option<String> {
        let found = self.shared.roots.runtime(language, image).ok()?.found;
        let real = match image.folder() {
            None => PathBuf::from(&found.program),
            Some(folder) => folder.join(found.program.trim_start_matches('/')),
        };
        // In an image, a link's target may not exist on the host. The link's own metadata then identifies it.
        let metadata = std::fs::metadata(&real).or_else(|_| std::fs::symlink_metadata(&real)).ok()?;
        let stamp = (metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec());
        Some(format!("{} {stamp:?}", real.display()))
    }
}

impl Provider for Native {
    fn name(&self) -> &'static str {
        "native"
    }

    fn capabilities(&self) -> Capabilities {
        let living = SandboxCapabilities { cannot_pause: self.no_freezer.clone() };
        Capabilities {
            missing: self.missing.clone(),
            host_paths: true,
            package_layers: true,
            single_hosts: true,
            images: ImageChoice::Unpacked,
            remote: false,
            sandboxes: Some(living),
            strength: Some(IsolationStrength::new(Kernel::Host, self.missing.len())),
        }
    }

    fn pools(&self) -> BoxFuture<'_, Vec<PoolMetrics>> {
        Box::pin(async {
            let Ok(connection) = self.shared.link.connection() else { return Vec::new() };
            connection.pools().await.0
        })
    }

    fn longest_turns(&self) -> BoxFuture<'_, Vec<LongestTurns>> {
        Box::pin(async {
            let Ok(connection) = self.shared.link.connection() else { return Vec::new() };
            connection.pools().await.1
        })
    }

    fn take_mismatches(&self) -> Vec<ConfinementMismatch> {
        self.shared.link.mismatches.take()
    }

    fn runtime_identity<'a>(
        &'a self,
        language: &'static Language,
        image: &'a Image,
    ) -> BoxFuture<'a, Option<String>> {
        Box::pin(std::future::ready(self.runtime_identity(language, image)))
    }

    fn open<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Result<Box<dyn Sandbox>, ProviderError>> {
        Box::pin(async move {
            let place = CheckedPlan::check(plan)?;
            Ok(Box::new(NativeSandbox { shared: Arc::clone(&self.shared), place }) as Box<dyn Sandbox>)
        })
    }

    fn open_sandbox<'a>(
        &'a self,
        plan: &'a Plan,
    ) -> BoxFuture<'a, Result<Box<dyn SandboxHandle>, ProviderError>> {
        Box::pin(async move {
            let living = living::open(&self.shared, CheckedPlan::check(plan)?).await?;
            Ok(Box::new(living) as Box<dyn SandboxHandle>)
        })
    }

    fn shut_down(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.shared.link.close())
    }
}

/// Refuses required layers that the plan itself disables.
fn refuse_unenforceable_layers(plan: &Plan) -> Result<(), ProviderError> {
    let writable_host = plan.host_workspace.is_some() || plan.mounts.iter().any(|mount| mount.writable);
    let refuse = |layer: Layer, why: &str| {
        Err(ProviderError::Unsupported {
            field: "require",
            message: format!("'{layer}' cannot be enforced: {why}"),
        })
    };
    for layer in &plan.require {
        match layer {
            Layer::NetNs if plan.network == Network::Full => {
                return refuse(*layer, "network 'full' is the host's own network");
            }
            Layer::DiskQuota if writable_host => {
                return refuse(*layer, "a writable host folder has no disk quota");
            }
            _ => {}
        }
    }
    Ok(())
}

/// A plan with its host paths checked.
#[derive(Debug)]
struct CheckedPlan {
    plan: Plan,
    playground: Option<String>,
    binds: Vec<spec::HostBind>,
}

/// A sandbox that runs each task in a new jail, one after another.
#[derive(Debug)]
struct NativeSandbox {
    shared: Arc<NativeShared>,
    place: CheckedPlan,
}

impl CheckedPlan {
    fn check(plan: &Plan) -> Result<Self, ProviderError> {
        refuse_unenforceable_layers(plan)?;
        let playground = plan.host_workspace.as_deref().map(paths::check_playground).transpose()?;
        let binds = plan.mounts.iter().map(paths::check_mount).collect::<Result<_, _>>()?;
        let mut plan = plan.clone();
        let mut env = egress::proxy_environment(&plan.network);
        env.append(&mut plan.env);
        plan.env = env;
        Ok(Self { plan, playground, binds })
    }

    /// Returns whether a program cannot have changed anything outside the sandbox.
    fn is_sealed(&self) -> bool {
        let writable = self.playground.is_some() || self.binds.iter().any(|bind| bind.writable);
        !writable && self.plan.network == Network::None
    }
}

impl Sandbox for NativeSandbox {
    fn run<'a>(
        &'a mut self,
        task: &'a Task,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<Outcome, ProviderError>> {
        Box::pin(run::run(&self.shared, &self.place, task, sink, cancel))
    }
}

/// Returns the root for a task, and the runtime of its language.
fn root_for(
    roots: &RootBuilder,
    place: &CheckedPlan,
    task: &Task,
) -> Result<(Arc<NumberedRoot>, Option<crate::program::FoundRuntime>), ProviderError> {
    let image = &place.plan.image;
    let (found, prefixes) = match &task.program {
        Program::Code { language, .. } if language.name != "bash" => {
            let found = roots.runtime(language, image)?;
            (Some(found.found), found.prefixes)
        }
        // A shell or a program may call any interpreter, so the common ones are included.
        Program::Code { language, .. } => {
            let found = roots.runtime(language, image)?;
            (Some(found.found), roots.common_prefixes(image))
        }
        Program::Command(_) => (None, roots.common_prefixes(image)),
    };
    Ok((roots.tree(&place.plan, &place.binds, &prefixes)?, found))
}
