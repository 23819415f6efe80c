//! The native provider: sandboxes on this machine's kernel, through the jail. Needs no daemon, no Docker and
//! no root.
//!
//! ```text
//! Plan ─▶ CheckedPlan: host paths ─▶ runtimes.rs: interpreter ─▶ roots.rs: root tree ─▶ LauncherRequest::Start
//! Task ─▶ program.rs: commands, files ─▶ run.rs: pipes, payload ──────────────────▶        │
//! Outcome ◀── run_io.rs: output, result, artifacts ◀── LauncherEvent::Ended ◀──────────────┘
//! ```
//!
//! With a build cache, a compiled program has two jails: one builds it, unless it was built before, and one runs it
//! (`build.rs`).
//!
//! A long-lived sandbox is a jail whose PID 1 is the guest (`backend.rs`). A launcher that dies is replaced (`launcher_handle.rs`), and a run that it lost runs again if no effect of
//! the first attempt is visible (`run.rs`).

mod artifact_stream;
mod backend;
mod build;
mod connection;
mod disks;
mod egress;
mod launcher_handle;
mod mismatches;
mod partial_line;
mod roots;
mod run;
mod run_io;
mod runtimes;
mod writable_tree;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use belljar_engine::language::{LANGUAGES, Language};
use belljar_engine::layer::Layer;
use belljar_engine::network::GateKind;
use belljar_engine::outcome::{Kernel, Outcome};
use belljar_engine::plan::{Image, Network, Plan, Program, RootAccess, Task};
use belljar_engine::provider::{
    BoxFuture, Capabilities, ConfinementMismatch, ImageChoice, IsolationStrength, LongestTurns, MissingLayer,
    PoolMetrics, Provider, ProviderError, Sink,
};
use belljar_engine::sandbox_handle::{SandboxCapabilities, SandboxHandle};
use belljar_engine::warm::WarmSettings;
use belljar_jail::launcher::Launcher;
use belljar_jail::{Step, disk_file, spec};

use crate::build_cache::BuildCache;
use crate::egress::with_proxy_environment;
use crate::host_paths::{check_host_workspace, check_mount};
use disks::Disks;
use launcher_handle::LauncherHandle;
use roots::{NumberedRoot, RootBuilder};

/// Name in requests and receipts.
const NAME: &str = "native";

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
    builds: Option<BuildCache>,
    always_proxy: bool,
    disk_folder: Option<PathBuf>,
}

impl SpawnedLauncher {
    /// Starts the launcher by executing this binary again.
    ///
    /// # Errors
    /// Names the step that failed.
    pub fn start() -> Result<Self, ProviderError> {
        let launcher =
            Launcher::start().map_err(|error| ProviderError::setup("start the launcher", error))?;
        let builds = None;
        Ok(Self { launcher, total_memory_bytes: None, builds, always_proxy: false, disk_folder: None })
    }

    /// Limits the memory of all sandboxes together to less than the machine could provide.
    #[must_use]
    pub fn with_total_memory(self, bytes: Option<u64>) -> Self {
        Self { total_memory_bytes: bytes, ..self }
    }

    /// Makes the programs of sandboxes with a gate use a proxy, also where the host has TUN devices.
    #[must_use]
    pub fn with_proxy_only(self, always_proxy: bool) -> Self {
        Self { always_proxy, ..self }
    }

    /// Sets a cache of built programs. Without one, code is built for each run.
    #[must_use]
    pub fn with_build_cache(self, builds: Option<BuildCache>) -> Self {
        Self { builds, ..self }
    }

    /// Sets the folder for disks of sandboxes in files. Tenants must not be able to reach it. Without one, every
    /// disk is in memory.
    #[must_use]
    pub fn with_disk_folder(self, disk_folder: Option<PathBuf>) -> Self {
        Self { disk_folder, ..self }
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
    builds: Option<Arc<BuildCache>>,
    always_proxy: bool,
    /// Whether sandboxes can have TUN devices. Found out when the first one needs it.
    has_tun: OnceLock<bool>,
    /// Disks in files, or why there are none.
    disks: Result<Disks, String>,
}

impl NativeShared {
    /// Returns how the programs of a network with a gate reach it. The host's loopback is reached through the
    /// proxy: without one, `localhost` is the sandbox's own.
    fn gate_kind(&self, network: &Network) -> GateKind {
        let has_tun = || *self.has_tun.get_or_init(belljar_jail::tun::is_available);
        match network.gate_rules() {
            Some(rules) if !self.always_proxy && !rules.allows_host_loopback() && has_tun() => GateKind::Tun,
            _ => GateKind::Proxy,
        }
    }

    /// Returns a string that changes with the program that runs a language.
    fn runtime_identity(&self, language: &'static Language, image: &Image) -> Option<String> {
        let found = self.roots.runtime(language, image).ok()?.found;
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
    pub async fn connect(mut launched: SpawnedLauncher, warm: WarmSettings) -> Result<Self, ProviderError> {
        // Done while the launcher sets itself up.
        let roots = RootBuilder::new();
        let settings = spec::LauncherSettings { warm, total_memory_bytes: launched.total_memory_bytes };
        let builds = launched.builds.take().map(Arc::new);
        let always_proxy = launched.always_proxy;
        let disks = open_disks(launched.disk_folder.take());
        let (link, host) = LauncherHandle::open(launched, settings).await?;
        let has_tun = OnceLock::new();
        let shared = NativeShared { link, roots, builds, always_proxy, has_tun, disks };
        Ok(Self { shared: Arc::new(shared), missing: host.missing, no_freezer: host.no_freezer })
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
}

impl Native {
    /// Returns why no sandbox can have a writable root here, or `None` if one can.
    fn obstacle_to_writable_root(&self) -> Option<String> {
        if let Err(why) = &self.shared.disks {
            return Some(why.clone());
        }
        // Its root user can act as many users, and only this group counts the processes of all of them.
        if let Some(missing) = self.missing.iter().find(|missing| missing.layer == Layer::CgroupPids) {
            return Some(format!("{} is not enforced: {}", missing.layer, missing.reason));
        }
        disk_file::lacks_mapped_layers().then(|| "the kernel is older than 5.19".to_owned())
    }
}

impl Provider for Native {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        let sandboxes = SandboxCapabilities {
            cannot_pause: self.no_freezer.clone(),
            cannot_add_packages: None,
            cannot_use_disk_file: self.shared.disks.as_ref().err().cloned(),
            cannot_write_root: self.obstacle_to_writable_root(),
        };
        Capabilities {
            missing: self.missing.clone(),
            host_paths: true,
            package_layers: true,
            single_hosts: true,
            gpus: false,
            images: ImageChoice::Unpacked,
            remote: false,
            sandboxes: Some(sandboxes),
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
        Box::pin(std::future::ready(self.shared.runtime_identity(language, image)))
    }

    fn run<'a>(
        &'a self,
        plan: &'a Plan,
        task: &'a Task,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<Outcome, ProviderError>> {
        Box::pin(async move {
            let mut cancel = cancel;
            let checked = CheckedPlan::check(plan, &self.shared)?;
            let ended = run::run(&self.shared, &checked, task, sink, Box::pin(&mut cancel)).await;
            match ended {
                Err(failed) if checked.lacks_tun(&failed) => {
                    run::run(&self.shared, &checked.with_proxy(), task, sink, cancel).await
                }
                ended => ended,
            }
        })
    }

    fn is_built<'a>(&'a self, plan: &'a Plan, task: &'a Task) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let Ok(checked) = CheckedPlan::check(plan, &self.shared) else { return false };
            build::is_built(&self.shared, &checked, task)
        })
    }

    fn remove_tenant<'a>(&'a self, tenant: &'a str) -> BoxFuture<'a, Result<(), ProviderError>> {
        Box::pin(build::remove_tenant(&self.shared, tenant))
    }

    fn open<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Result<Box<dyn SandboxHandle>, ProviderError>> {
        Box::pin(async move {
            let checked = CheckedPlan::check(plan, &self.shared)?;
            let sandbox = match backend::open(&self.shared, &checked).await {
                Err(failed) if checked.lacks_tun(&failed) => {
                    backend::open(&self.shared, &checked.with_proxy()).await?
                }
                opened => opened?,
            };
            Ok(Box::new(sandbox) as Box<dyn SandboxHandle>)
        })
    }

    fn shut_down(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.shared.link.close())
    }
}

/// Opens the folder for disks in files, or returns why disks can only be in memory.
fn open_disks(folder: Option<PathBuf>) -> Result<Disks, String> {
    let folder = folder.ok_or("only a server has a data folder for disks in files")?;
    match disk_file::obstacle() {
        Some(why) => Err(why),
        None => Disks::open(&folder).map_err(|error| format!("{}: {error}", folder.display())),
    }
}

/// Refuses required layers that the plan itself disables.
fn refuse_unenforceable_layers(plan: &Plan) -> Result<(), ProviderError> {
    let writable_host = plan.host_workspace.is_some() || plan.mounts.iter().any(|mount| mount.writable);
    if plan.root == RootAccess::Writable && writable_host {
        let message = "a sandbox with a writable root can make set-uid files, so it mounts nothing writable of the host; \
                       mount volumes with \"read_only\": true";
        return Err(ProviderError::unsupported("root", message));
    }
    let refuse = |layer: Layer, why: &str| {
        Err(ProviderError::unsupported("require", format!("'{layer}' cannot be enforced: {why}")))
    };
    for layer in &plan.require {
        match layer {
            Layer::NetNs if plan.network == Network::Full => {
                return refuse(*layer, "network 'full' is the host's own network");
            }
            Layer::ReadOnlyRoot | Layer::NoCapabilities if plan.root == RootAccess::Writable => {
                return refuse(*layer, "root 'writable' was asked for");
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
    /// How programs reach the gate, if the network has one.
    gate: GateKind,
    host_workspace: Option<String>,
    binds: Vec<spec::HostBind>,
}

impl CheckedPlan {
    fn check(plan: &Plan, shared: &NativeShared) -> Result<Self, ProviderError> {
        refuse_unenforceable_layers(plan)?;
        let host_workspace = plan.host_workspace.as_deref().map(check_host_workspace).transpose()?;
        let binds = plan.mounts.iter().map(check_mount).collect::<Result<_, _>>()?;
        let gate = shared.gate_kind(&plan.network);
        let plan = match gate {
            GateKind::Proxy => with_proxy_environment(plan),
            GateKind::Tun => plan.clone(),
        };
        Ok(Self { plan, gate, host_workspace, binds })
    }

    /// Returns whether the set-up failed because no TUN device could be made. Then nothing of the tenant's has run.
    fn lacks_tun(&self, failed: &ProviderError) -> bool {
        let ProviderError::Setup { step, cause } = failed else { return false };
        let is_device = self.gate == GateKind::Tun && step == Step::NetworkDevice.name();
        if is_device {
            tracing::debug!("no TUN device ({cause}); this sandbox uses the proxy");
        }
        is_device
    }

    /// Returns the same plan with the proxy. It is for one sandbox: the memory limit that a tenant chose may be why
    /// it has no device, so the failure says nothing about the sandboxes of others.
    fn with_proxy(self) -> Self {
        Self { plan: with_proxy_environment(&self.plan), gate: GateKind::Proxy, ..self }
    }

    /// Returns whether a program cannot have changed anything outside the sandbox.
    fn is_sealed(&self) -> bool {
        let writable = self.host_workspace.is_some() || self.binds.iter().any(|bind| bind.writable);
        !writable && self.plan.network == Network::None
    }
}

/// Returns the root for a task, and the runtime of its language.
fn root_for(
    roots: &RootBuilder,
    checked: &CheckedPlan,
    task: &Task,
) -> Result<(Arc<NumberedRoot>, Option<crate::program::FoundRuntime>), ProviderError> {
    let image = &checked.plan.image;
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
    Ok((roots.tree(checked, &prefixes, false)?, found))
}
