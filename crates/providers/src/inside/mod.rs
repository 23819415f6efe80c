//! A client for the guest of any provider: commands, files and tasks. The provider itself measures, pauses
//! and ends the sandbox.

pub(crate) mod ahead;
mod commands;
mod errors;
mod files;
mod left;
pub(crate) mod task;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_egress::Egress;
use belljar_engine::limits::Limits;
use belljar_engine::living::{LivingError, NetworkUse};
use belljar_engine::plan::{Plan, WORKSPACE};
use belljar_engine::provider::BoxFuture;
use belljar_guest::Guest;
use belljar_guest::protocol::Settings;
use tokio::sync::watch;

use crate::program::{add_packages, base_environment};

/// Time allowed for a guest to connect, on a slow machine with hardly any CPU time.
pub(crate) const GREETING: Duration = Duration::from_secs(60);
/// How much output the guest keeps for all processes together, and the divisor that bounds it by a small
/// sandbox's memory.
const KEPT_BYTES: u64 = 64 << 20;
const KEPT_PART: u64 = 8;

/// Returns the guest's settings for these limits.
pub(crate) fn settings(limits: &Limits) -> Settings {
    let kept_bytes = KEPT_BYTES.min(limits.memory_bytes / KEPT_PART);
    Settings { workdir: WORKSPACE.to_owned(), kept_bytes, ..Settings::default() }
}

/// Where pip installs programs of the sandbox user.
const INSTALLED: &str = "/home/sandbox/.local/bin";
/// Allows the sandbox user to install packages: the root is read-only, so the system's packages cannot be
/// damaged. Update notices are off because users in the sandbox cannot update the installer.
const INSTALLING: [(&str, &str); 3] = [
    ("PIP_BREAK_SYSTEM_PACKAGES", "1"),
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("NPM_CONFIG_UPDATE_NOTIFIER", "false"),
];

/// Returns the environment of every process in a long-lived sandbox. `path` is the search path inside.
pub(crate) fn environment(path: &str, plan: &Plan) -> BTreeMap<String, String> {
    let mut env = base_environment(&format!("{path}:{INSTALLED}"));
    env.extend(INSTALLING.map(|(name, value)| (name.to_owned(), value.to_owned())));
    env.extend(plan.env.clone());
    add_packages(&mut env, &plan.package_layers);
    env
}

/// Returns the network use of a sandbox with egress.
pub(crate) fn network_use(egress: &Egress) -> NetworkUse {
    let traffic = egress.traffic();
    NetworkUse {
        rules: egress.rules(),
        refused: egress.findings(),
        connections: traffic.connections,
        sent_bytes: traffic.sent_bytes,
        received_bytes: traffic.received_bytes,
    }
}

/// Control over the container or jail that a guest runs in.
pub(crate) trait Keeper: Debug + Send + Sync {
    /// Kills everything inside without waiting.
    fn kill(&self);

    /// Returns why it ended, waiting until that is known.
    fn fate(&self) -> BoxFuture<'_, String>;
}

/// A client for one guest.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) guest: Guest,
    keeper: Arc<dyn Keeper>,
    /// The environment of every process inside.
    env: BTreeMap<String, String>,
    paused: AtomicBool,
    halted: watch::Sender<Option<String>>,
}

impl Inside {
    pub(crate) fn new(guest: Guest, keeper: Arc<dyn Keeper>, env: BTreeMap<String, String>) -> Self {
        Self { guest, keeper, env, paused: AtomicBool::new(false), halted: watch::Sender::default() }
    }

    /// Returns the guest, or an error if the sandbox is paused and could not answer.
    pub(crate) fn awake(&self) -> Result<&Guest, LivingError> {
        if self.is_paused() { Err(LivingError::Paused) } else { Ok(&self.guest) }
    }

    /// Returns the guest for operations that start or write something, or an error if the sandbox is halted
    /// or paused.
    pub(crate) fn able(&self) -> Result<&Guest, LivingError> {
        match self.halted() {
            Some(why) => Err(LivingError::Halted(why)),
            None => self.awake(),
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
    async fn unless_halted<T>(
        &self,
        work: impl Future<Output = Result<T, LivingError>>,
    ) -> Result<T, LivingError> {
        let mut halted = self.halted.subscribe();
        tokio::select! {
            biased;
            // The sender is in `self`, so waiting cannot fail.
            Ok(why) = halted.wait_for(Option::is_some) => {
                Err(LivingError::Halted(why.clone().unwrap_or_default()))
            }
            done = work => done,
        }
    }
}
