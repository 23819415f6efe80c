//! A client for the guest of any provider: commands, files and tasks. The provider itself measures, pauses
//! and ends the sandbox.

mod commands;
mod errors;
mod files;
pub(crate) mod prestart;
mod results;
pub(crate) mod task;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_egress::Egress;
use belljar_engine::limits::Limits;
use belljar_engine::plan::{Plan, WORKSPACE};
use belljar_engine::provider::BoxFuture;
use belljar_engine::sandbox_handle::{NetworkStats, SandboxError};
use belljar_guest::Guest;
use belljar_guest::protocol::GuestSettings;
use tokio::sync::watch;

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
pub(crate) fn sandbox_environment(path: &str, plan: &Plan) -> BTreeMap<String, String> {
    let mut env = base_environment(&format!("{path}:{USER_PROGRAMS}"));
    env.extend(INSTALLER_ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned())));
    env.extend(plan.env.clone());
    add_packages(&mut env, &plan.package_layers);
    env
}

/// Returns the network use of a sandbox with egress.
pub(crate) fn network_use(egress: &Egress) -> NetworkStats {
    let traffic = egress.traffic();
    NetworkStats {
        rules: egress.rules(),
        refused: egress.findings(),
        connections: traffic.connections,
        sent_bytes: traffic.sent_bytes,
        received_bytes: traffic.received_bytes,
    }
}

/// Control over the container or jail that a guest runs in.
pub(crate) trait Lifecycle: Debug + Send + Sync {
    /// Kills everything inside without waiting.
    fn kill(&self);

    /// Returns why it ended, waiting until that is known.
    fn exit_cause(&self) -> BoxFuture<'_, String>;
}

/// A client for one guest.
#[derive(Debug)]
pub(crate) struct GuestClient {
    pub(crate) guest: Guest,
    lifecycle: Arc<dyn Lifecycle>,
    /// The environment of every process inside.
    env: BTreeMap<String, String>,
    paused: AtomicBool,
    halted: watch::Sender<Option<String>>,
}

impl GuestClient {
    pub(crate) fn new(guest: Guest, keeper: Arc<dyn Lifecycle>, env: BTreeMap<String, String>) -> Self {
        Self {
            guest,
            lifecycle: keeper,
            env,
            paused: AtomicBool::new(false),
            halted: watch::Sender::default(),
        }
    }

    /// Returns the guest, or an error if the sandbox is paused and could not answer.
    pub(crate) fn running_guest(&self) -> Result<&Guest, SandboxError> {
        if self.is_paused() { Err(SandboxError::Paused) } else { Ok(&self.guest) }
    }

    /// Returns the guest for operations that start or write something, or an error if the sandbox is halted
    /// or paused.
    pub(crate) fn writable_guest(&self) -> Result<&Guest, SandboxError> {
        match self.halted() {
            Some(why) => Err(SandboxError::Halted(why)),
            None => self.running_guest(),
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    pub(crate) fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Release);
    }

    pub(crate) fn halted(&self) -> Option<String> {
        self.halted.borrow().clone()
    }

    pub(crate) fn set_halted(&self, why: Option<String>) {
        self.halted.send_replace(why);
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
