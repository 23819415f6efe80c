//! What is asked of a guest, whoever made the box around it: commands, files, and tasks. What counts, pauses and ends the
//! box is its keeper's.

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

/// How long a guest may take to greet, on a slow machine with next to no processor time.
pub(crate) const GREETING: Duration = Duration::from_secs(60);
/// What a guest keeps of output, of all processes together; and the part of a small sandbox's memory that it may be.
const KEPT_BYTES: u64 = 64 << 20;
const KEPT_PART: u64 = 8;

/// The bounds of a guest in a box of this size.
pub(crate) fn settings(limits: &Limits) -> Settings {
    let kept_bytes = KEPT_BYTES.min(limits.memory_bytes / KEPT_PART);
    Settings { workdir: WORKSPACE.to_owned(), kept_bytes, ..Settings::default() }
}

/// Where pip puts programs of the sandbox user.
const INSTALLED: &str = "/home/sandbox/.local/bin";
/// Lets packages be installed as the sandbox user: the root is read-only, so nothing of it can be broken. And nobody in
/// there can do anything about a newer installer.
const INSTALLING: [(&str, &str); 3] = [
    ("PIP_BREAK_SYSTEM_PACKAGES", "1"),
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("NPM_CONFIG_UPDATE_NOTIFIER", "false"),
];

/// What every process of a box has that stays. `path` is the search path inside.
pub(crate) fn environment(path: &str, plan: &Plan) -> BTreeMap<String, String> {
    let mut env = base_environment(&format!("{path}:{INSTALLED}"));
    env.extend(INSTALLING.map(|(name, value)| (name.to_owned(), value.to_owned())));
    env.extend(plan.env.clone());
    add_packages(&mut env, &plan.package_layers);
    env
}

/// What went through a box's way out.
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

/// Whoever made the box.
pub(crate) trait Keeper: Debug + Send + Sync {
    /// Ends everything in it; does not wait.
    fn kill(&self);

    /// Why it is gone; waits until that is known.
    fn fate(&self) -> BoxFuture<'_, String>;
}

/// A guest to ask.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) guest: Guest,
    keeper: Arc<dyn Keeper>,
    /// What every process in it has.
    env: BTreeMap<String, String>,
    paused: AtomicBool,
    halted: watch::Sender<Option<String>>,
}

impl Inside {
    pub(crate) fn new(guest: Guest, keeper: Arc<dyn Keeper>, env: BTreeMap<String, String>) -> Self {
        Self { guest, keeper, env, paused: AtomicBool::new(false), halted: watch::Sender::default() }
    }

    /// Whether it can be asked: one that is paused would answer only when it is resumed.
    pub(crate) fn awake(&self) -> Result<&Guest, LivingError> {
        if self.is_paused() { Err(LivingError::Paused) } else { Ok(&self.guest) }
    }

    /// The same for what starts or writes something.
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

    /// Does what writes, until it is halted.
    async fn unless_halted<T>(
        &self,
        work: impl Future<Output = Result<T, LivingError>>,
    ) -> Result<T, LivingError> {
        let mut halted = self.halted.subscribe();
        tokio::select! {
            biased;
            // The sender is ours, so waiting cannot fail.
            Ok(why) = halted.wait_for(Option::is_some) => {
                Err(LivingError::Halted(why.clone().unwrap_or_default()))
            }
            done = work => done,
        }
    }
}
