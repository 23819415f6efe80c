//! The native provider: sandboxes on this machine's kernel, through the jail. Needs no daemon, no Docker and
//! no root.

mod attend;
mod connection;
pub(crate) mod gate;
pub(crate) mod image;
mod link;
mod living;
mod mismatches;
pub(crate) mod paths;
pub mod places;
pub(crate) mod run;
pub(crate) mod runtimes;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use belljar_engine::fleet::Strength;
use belljar_engine::language::{LANGUAGES, Language};
use belljar_engine::layer::Layer;
use belljar_engine::living::{Living, LivingCapabilities};
use belljar_engine::outcome::{Kernel, Outcome};
use belljar_engine::plan::{Image, Network, Plan, Program, Task};
use belljar_engine::provider::{
    BoxFuture, Capabilities, ImageChoice, LoopTurns, Mismatch, MissingLayer, PoolMetrics, Provider,
    ProviderError, Sandbox, Sink,
};
use belljar_engine::warm::{WarmSettings, Warming};
use belljar_jail::launcher::Launcher;
use belljar_jail::spec;

use image::{NumberedRoot, Roots};
use link::Link;
use run::Artifacts;

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
pub struct Launched {
    launcher: Launcher,
    memory_for_all: Option<u64>,
}

impl Launched {
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
        Ok(Self { launcher, memory_for_all: None })
    }

    /// Limits the memory of all sandboxes together to less than the machine could provide.
    #[must_use]
    pub fn with_memory_for_all(self, bytes: Option<u64>) -> Self {
        Self { memory_for_all: bytes, ..self }
    }
}

fn settings_of(warm: WarmSettings, memory_for_all: Option<u64>) -> spec::Settings {
    let warming = match warm.mode {
        Warming::Pool => spec::Warming::Pool,
        Warming::Fork => spec::Warming::Fork,
        Warming::Off => spec::Warming::Off,
    };
    spec::Settings { warming, pool_memory_bytes: warm.memory_bytes, idle: warm.idle, memory_for_all }
}

/// Returns what image `host` shows of this machine.
pub fn host_root() -> spec::RootTree {
    image::host_tree()
}

/// The native provider.
#[derive(Debug)]
pub struct Native {
    shared: Arc<Shared>,
    missing: Vec<MissingLayer>,
    no_freezer: Option<String>,
}

/// State shared by all sandboxes of the provider.
#[derive(Debug)]
struct Shared {
    link: Link,
    roots: Roots,
    artifacts: Artifacts,
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
    pub async fn connect(launched: Launched, warm: WarmSettings) -> Result<Self, ProviderError> {
        // Done while the launcher sets itself up.
        let roots = Roots::new();
        let settings = settings_of(warm, launched.memory_for_all);
        let (link, host) = Link::open(launched, settings).await?;
        let missing = host.missing.into_iter().map(|gap| MissingLayer {
            layer: engine_layer(gap.layer),
            reason: gap.reason,
            remedy: gap.remedy,
        });
        Ok(Self {
            shared: Arc::new(Shared { link, roots, artifacts: Artifacts::default() }),
            missing: missing.collect(),
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
    fn identity_of(&self, language: &'static Language, image: &Image) -> Option<String> {
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
        let living = LivingCapabilities { cannot_pause: self.no_freezer.clone() };
        Capabilities {
            missing: self.missing.clone(),
            host_paths: true,
            package_layers: true,
            single_hosts: true,
            images: ImageChoice::Unpacked,
            remote: false,
            living: Some(living),
            strength: Some(Strength::new(Kernel::Host, self.missing.len())),
        }
    }

    fn pools(&self) -> BoxFuture<'_, Vec<PoolMetrics>> {
        Box::pin(async {
            let Ok(connection) = self.shared.link.connection() else { return Vec::new() };
            connection.pools().await.0.into_iter().map(pool_metrics).collect()
        })
    }

    fn turns(&self) -> BoxFuture<'_, Vec<LoopTurns>> {
        Box::pin(async {
            let Ok(connection) = self.shared.link.connection() else { return Vec::new() };
            let turns = |turns: spec::Turns| LoopTurns {
                handler: turns.handler,
                longest_cpu: turns.longest_cpu,
                longest_wall: turns.longest_wall,
            };
            connection.pools().await.1.into_iter().map(turns).collect()
        })
    }

    fn take_mismatches(&self) -> Vec<Mismatch> {
        self.shared.link.mismatches.take()
    }

    fn runtime<'a>(&'a self, language: &'static Language, image: &'a Image) -> BoxFuture<'a, Option<String>> {
        Box::pin(std::future::ready(self.identity_of(language, image)))
    }

    fn open<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Result<Box<dyn Sandbox>, ProviderError>> {
        Box::pin(async move {
            let place = Place::of(plan)?;
            Ok(Box::new(NativeSandbox { shared: Arc::clone(&self.shared), place }) as Box<dyn Sandbox>)
        })
    }

    fn open_living<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Result<Box<dyn Living>, ProviderError>> {
        Box::pin(async move {
            let living = living::open(&self.shared, Place::of(plan)?).await?;
            Ok(Box::new(living) as Box<dyn Living>)
        })
    }

    fn shut_down(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.shared.link.close())
    }
}

/// Refuses required layers that the plan itself disables.
fn refuse_what_this_plan_lacks(plan: &Plan) -> Result<(), ProviderError> {
    let writable_host = plan.playground.is_some() || plan.mounts.iter().any(|mount| mount.writable);
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
struct Place {
    plan: Plan,
    playground: Option<String>,
    binds: Vec<spec::HostBind>,
}

/// A sandbox that runs each task in a new jail, one after another.
#[derive(Debug)]
struct NativeSandbox {
    shared: Arc<Shared>,
    place: Place,
}

impl Place {
    fn of(plan: &Plan) -> Result<Self, ProviderError> {
        refuse_what_this_plan_lacks(plan)?;
        let playground = plan.playground.as_deref().map(paths::playground).transpose()?;
        let binds = plan.mounts.iter().map(paths::bind).collect::<Result<_, _>>()?;
        let mut plan = plan.clone();
        let mut env = gate::environment(&plan.network);
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
    roots: &Roots,
    place: &Place,
    task: &Task,
) -> Result<(Arc<NumberedRoot>, Option<crate::program::Found>), ProviderError> {
    let image = &place.plan.image;
    let (found, prefixes) = match &task.program {
        Program::Code { language, .. } if language.name != "bash" => {
            let found = roots.runtime(language, image)?;
            (Some(found.found), found.prefixes)
        }
        // A shell or a program may call any interpreter, so the common ones are included.
        Program::Code { language, .. } => {
            let found = roots.runtime(language, image)?;
            (Some(found.found), roots.usual_prefixes(image))
        }
        Program::Command(_) => (None, roots.usual_prefixes(image)),
    };
    Ok((roots.tree(&place.plan, &place.binds, &prefixes)?, found))
}

fn engine_layer(layer: spec::Layer) -> Layer {
    match layer {
        spec::Layer::UserNs => Layer::UserNs,
        spec::Layer::PidNs => Layer::PidNs,
        spec::Layer::MountNs => Layer::MountNs,
        spec::Layer::IpcNs => Layer::IpcNs,
        spec::Layer::UtsNs => Layer::UtsNs,
        spec::Layer::NetNs => Layer::NetNs,
        spec::Layer::CgroupNs => Layer::CgroupNs,
        spec::Layer::ReadOnlyRoot => Layer::ReadOnlyRoot,
        spec::Layer::DiskQuota => Layer::DiskQuota,
        spec::Layer::SeparateUid => Layer::SeparateUid,
        spec::Layer::NoCapabilities => Layer::NoCapabilities,
        spec::Layer::NoNewPrivs => Layer::NoNewPrivs,
        spec::Layer::Rlimits => Layer::Rlimits,
        spec::Layer::Landlock => Layer::Landlock,
        spec::Layer::Seccomp => Layer::Seccomp,
        spec::Layer::CgroupMemory => Layer::CgroupMemory,
        spec::Layer::CgroupCpu => Layer::CgroupCpu,
        spec::Layer::CgroupPids => Layer::CgroupPids,
    }
}

fn pool_metrics(pool: spec::PoolState) -> PoolMetrics {
    PoolMetrics {
        name: pool.name,
        tenant: pool.tenant,
        size: pool.size,
        wanted: pool.wanted,
        memory_bytes: pool.memory_bytes,
        hits: pool.hits,
        forks: pool.forks,
        misses: pool.misses,
        zygotes: pool.zygotes,
        mismatches: pool.mismatches,
        refill_ms: pool.refill.as_secs_f64() * 1e3,
        processes: pool.processes,
        obstacle: pool.obstacle,
    }
}
