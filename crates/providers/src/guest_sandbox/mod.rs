//! A sandbox whose PID 1 is the guest: everything that goes over the guest, once for all providers.
//!
//! ```text
//! provider starts a guest ─▶ GuestSandbox ─┬─ Guest    commands.rs, files.rs, task.rs
//!                                          ├─ Backend  the jail or container: measures, pauses, kills it
//!                                          └─ Egress   hosts, if it may reach some
//! ```
//!
//! How a program ended is the guest's word. What the sandbox uses, whether it reached a limit, and that it
//! ended are the backend's (`verdict.rs`, `denials.rs`). A request to a paused sandbox fails at once, because
//! the guest is frozen, too.

mod backend;
mod commands;
mod denials;
mod errors;
mod files;
mod handle;
mod prestart;
mod results;
mod task;
mod verdict;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belljar_egress::Egress;
use belljar_engine::limits::Limits;
use belljar_engine::packages::PackageLayer;
use belljar_engine::plan::{Plan, RootAccess, WORKSPACE};
use belljar_engine::sandbox_handle::SandboxError;
use belljar_guest::Guest;
use belljar_guest::protocol::GuestSettings;
use tokio::sync::watch;

pub(crate) use self::backend::{Backend, CANNOT_ADD_PACKAGES};
use self::denials::CommandStarts;
pub(crate) use self::prestart::{PrestartSpec, PrestartedInterpreter};
pub(crate) use self::task::INBOX;
use crate::program::{add_packages, base_environment};

/// Time allowed for a guest to connect, on a slow machine with hardly any CPU time.
pub(crate) const GUEST_CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// How much output the guest keeps for all processes together, and the divisor that bounds it by a small
/// sandbox's memory.
const MAX_KEPT_OUTPUT_BYTES: u64 = 64 << 20;
const KEPT_OUTPUT_DIVISOR: u64 = 8;

/// Returns the guest's settings for these limits.
pub(crate) fn guest_settings(limits: &Limits) -> GuestSettings {
    let kept_bytes = MAX_KEPT_OUTPUT_BYTES.min(limits.memory_bytes / KEPT_OUTPUT_DIVISOR);
    GuestSettings { workdir: WORKSPACE.to_owned(), kept_bytes, ..GuestSettings::default() }
}

/// Where pip installs programs of the sandbox user.
const USER_PROGRAMS: &str = "/home/sandbox/.local/bin";
/// Allows the sandbox user to install packages: the root is read-only, so the system's packages cannot be
/// damaged. Update notices are off because users in the sandbox cannot update the installer.
const INSTALLER_ENVIRONMENT: [(&str, &str); 3] = [
    ("PIP_BREAK_SYSTEM_PACKAGES", "1"),
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("NPM_CONFIG_UPDATE_NOTIFIER", "false"),
];

/// Returns the environment of every process in a long-lived sandbox. `path` is the search path inside.
fn sandbox_environment(path: &str, plan: &Plan) -> BTreeMap<String, String> {
    let mut env = base_environment(&format!("{path}:{USER_PROGRAMS}"));
    env.extend(INSTALLER_ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned())));
    if plan.root == RootAccess::Writable {
        env.extend(["USER", "LOGNAME"].map(|name| (name.to_owned(), "root".to_owned())));
    }
    env.extend(plan.env.clone());
    add_packages(&mut env, &plan.package_layers);
    env
}

/// Returns a search path that begins with the programs of these layers.
fn with_programs(layers: &[PackageLayer], path: &str) -> String {
    let programs = layers.iter().filter_map(PackageLayer::bin_folder);
    programs.chain([path.to_owned()]).collect::<Vec<_>>().join(":")
}

/// A sandbox with a connected guest. Dropping it kills everything in it.
#[derive(Debug)]
pub(crate) struct GuestSandbox {
    guest: Guest,
    backend: Box<dyn Backend>,
    plan: Plan,
    /// The search path inside.
    path: String,
    /// The environment of every process inside. A single task brings its own.
    env: BTreeMap<String, String>,
    /// Whether it was created for a single task, so that everything that happens in it belongs to that task.
    single_task: bool,
    /// Its egress, if it may reach individual hosts.
    egress: Option<Egress>,
    /// Package layers that were attached after it was opened.
    attached: Mutex<Vec<PackageLayer>>,
    starts: CommandStarts,
    paused: AtomicBool,
    halted: watch::Sender<Option<String>>,
}

impl GuestSandbox {
    /// Creates a sandbox over a connected guest. `path` is the search path inside.
    pub(crate) fn new(
        guest: Guest,
        backend: impl Backend + 'static,
        plan: Plan,
        path: String,
        egress: Option<Egress>,
    ) -> Self {
        let single_task = backend.is_for_single_task();
        let env = if single_task { BTreeMap::new() } else { sandbox_environment(&path, &plan) };
        Self {
            guest,
            backend: Box::new(backend),
            plan,
            path,
            env,
            single_task,
            egress,
            attached: Mutex::default(),
            starts: CommandStarts::default(),
            paused: AtomicBool::new(false),
            halted: watch::Sender::default(),
        }
    }

    /// Returns the attached layers at places that were empty when it was opened.
    fn added_layers(&self) -> Vec<PackageLayer> {
        let is_new = |layer: &&PackageLayer| {
            self.plan.package_layers.iter().all(|known| known.destination != layer.destination)
        };
        let attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached.iter().filter(is_new).cloned().collect()
    }

    fn record_attached(&self, layers: &[PackageLayer]) {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached.retain(|known| layers.iter().all(|layer| layer.destination != known.destination));
        attached.extend(layers.iter().cloned());
    }

    /// Returns the search path inside, with the programs of attached packages.
    fn search_path(&self) -> String {
        with_programs(&self.added_layers(), &self.path)
    }

    /// Returns the environment of a process inside, with attached packages.
    fn environment(&self) -> BTreeMap<String, String> {
        let (mut env, added) = (self.env.clone(), self.added_layers());
        if let Some(path) = env.get_mut("PATH") {
            *path = with_programs(&added, path);
        }
        add_packages(&mut env, &added);
        env
    }

    /// Returns the plan, with attached packages.
    fn current_plan(&self) -> Plan {
        let mut plan = self.plan.clone();
        plan.package_layers.extend(self.added_layers());
        plan
    }

    /// Returns the guest, or an error if the sandbox is paused and could not answer.
    fn running_guest(&self) -> Result<&Guest, SandboxError> {
        if self.is_paused() { Err(SandboxError::Paused) } else { Ok(&self.guest) }
    }

    /// Returns the guest for operations that start or write something, or an error if the sandbox is halted
    /// or paused.
    fn writable_guest(&self) -> Result<&Guest, SandboxError> {
        match self.halt_cause() {
            Some(why) => Err(SandboxError::Halted(why)),
            None => self.running_guest(),
        }
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Pauses or resumes the sandbox.
    async fn set_paused(&self, paused: bool) -> Result<(), SandboxError> {
        if paused {
            // From here on, calls that a paused guest would not answer fail at once.
            self.paused.store(true, Ordering::Release);
        }
        let done = if paused { self.backend.pause().await } else { self.backend.resume().await };
        if paused == done.is_err() {
            self.paused.store(false, Ordering::Release);
        }
        done
    }

    /// Returns why the sandbox is halted, or `None`.
    fn halt_cause(&self) -> Option<String> {
        self.halted.borrow().clone()
    }

    /// Runs a write operation, but aborts it when the sandbox is halted.
    async fn run_unless_halted<T>(
        &self,
        work: impl Future<Output = Result<T, SandboxError>>,
    ) -> Result<T, SandboxError> {
        let mut halted = self.halted.subscribe();
        tokio::select! {
            biased;
            // The sender is in `self`, so waiting cannot fail.
            Ok(why) = halted.wait_for(Option::is_some) => {
                Err(SandboxError::Halted(why.clone().unwrap_or_default()))
            }
            done = work => done,
        }
    }
}
