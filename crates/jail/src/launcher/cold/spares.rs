//! Spare jails: set up before they are needed, for the root tree that was requested last, when the launcher
//! has nothing else to do. A spare jail contains everything that depends on its root tree alone. Each is used
//! once.

use std::rc::Rc;

use super::start::{ColdFilters, SetupRequest, SpareJail, set_up_jail};
use crate::cgroup;
use crate::launcher::limits;
use crate::launcher::recyclable::Recyclable;
use crate::launcher::setup::LauncherContext;
use crate::root_trees::BuiltRoot;
use crate::spec::{Jail, JailNetwork};

/// Maximum spare jails. Enough for a short burst; the launcher sets up more when it is idle.
const MAX_SPARES: usize = 4;

/// The spare jails of a launcher.
#[derive(Default)]
pub(crate) struct SpareJails {
    jails: Vec<SpareJail>,
    /// The most recent request, which the next one is likely to resemble.
    latest: Option<LastRequest>,
    /// Target number of spare jails: none for a launcher that runs one program and exits.
    target: usize,
    runs: usize,
}

/// A built root tree and the cgroup limits of the jail that requested it.
struct LastRequest {
    root: Rc<BuiltRoot>,
    limits: cgroup::GroupLimits,
}

impl SpareJails {
    /// Returns whether there are fewer spare jails than the target.
    pub(crate) fn needs_refill(&self) -> bool {
        self.jails.len() < self.target
    }

    /// Returns whether a process is the PID 1 of a spare jail.
    pub(crate) fn owns_pid(&self, pid: i32) -> bool {
        self.jails.iter().any(|spare| spare.pid() == pid)
    }

    /// Returns whether there are no spare jails.
    pub(crate) fn is_empty(&self) -> bool {
        self.jails.is_empty()
    }

    /// Records the request of a jail, and returns a working spare jail for its root tree, if there is one,
    /// and all spare jails that are no longer of use.
    pub(crate) fn take(&mut self, jail: &Jail, root: &Rc<BuiltRoot>) -> (Option<SpareJail>, Vec<SpareJail>) {
        self.runs += 1;
        self.target = (self.runs - 1).min(MAX_SPARES);
        let limits = limits::group_limits(&jail.limits, jail.commands.len());
        match &mut self.latest {
            Some(latest) if latest.root.number == root.number => latest.limits = limits,
            latest => *latest = Some(LastRequest { root: Rc::clone(root), limits }),
        }
        let (mut useful, useless): (Vec<_>, Vec<_>) =
            self.jails.drain(..).partition(|spare| spare.root_number == root.number && spare.is_usable());
        let spare = useful.pop();
        self.jails = useful;
        (spare, useless)
    }

    /// Sets up one spare jail. If that fails, nothing more is tried until the next run. A persistent failure
    /// is reported then, when a jail is needed and cannot be set up either.
    pub(crate) fn refill(&mut self, context: &mut LauncherContext, filters: &ColdFilters) {
        let Some(LastRequest { root, limits }) = &self.latest else { return };
        let (network, binds) = (JailNetwork::Own, Vec::new());
        let request = SetupRequest {
            root,
            network,
            binds,
            commands: 1,
            is_sandbox: false,
            gate: None,
            disk_mount: None,
            writable_root: false,
        };
        let made = set_up_jail(context, filters, &request).map(|mut spare| {
            // If this fails, it is tried again, and reported, when the actual limits are known.
            let _limited = spare.set_limits(*limits);
            self.jails.push(spare);
        });
        if made.is_err() {
            self.target = 0;
        }
    }

    /// Kills all spare jails, waits for them, and returns what can be recycled.
    pub(crate) fn kill_all(&mut self) -> Vec<Recyclable> {
        self.jails.drain(..).map(|spare| spare.kill().wait()).collect()
    }
}
