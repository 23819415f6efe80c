//! Spare jails: set up before they are needed, for the root tree that was requested last. Each is used once.

use std::rc::Rc;

use super::home::Home;
use super::start::{self, Filters, Remains, Waiting, Wanted};
use crate::cgroup;
use crate::spec::{Jail, Network};
use crate::template::Root;

/// Maximum spare jails. Enough for a short burst; the launcher sets up more when it is idle.
const KEPT: usize = 4;

/// The spare jails of a launcher.
#[derive(Default)]
pub(super) struct Spares {
    waiting: Vec<Waiting>,
    /// The most recent request, which the next one is likely to resemble.
    latest: Option<Latest>,
    /// Target number of spare jails: none for a launcher that runs one program and exits.
    kept: usize,
    runs: usize,
}

/// A built root tree and the cgroup limits of the jail that requested it.
struct Latest {
    root: Rc<Root>,
    limits: cgroup::Limits,
}

impl Spares {
    /// Returns whether there are fewer spare jails than the target.
    pub(super) fn wanting(&self) -> bool {
        self.waiting.len() < self.kept
    }

    /// Returns whether a process is the PID 1 of a spare jail.
    pub(super) fn knows(&self, pid: i32) -> bool {
        self.waiting.iter().any(|waiting| waiting.pid() == pid)
    }

    /// Returns whether there are no spare jails.
    pub(super) fn none_left(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Records the request of a jail, and returns a working spare jail for its root tree, if there is one,
    /// and all spare jails that are no longer of use.
    pub(super) fn take(&mut self, jail: &Jail, root: &Rc<Root>) -> (Option<Waiting>, Vec<Waiting>) {
        self.runs += 1;
        self.kept = (self.runs - 1).min(KEPT);
        let limits = start::group_limits(&jail.limits, jail.commands.len());
        match &mut self.latest {
            Some(latest) if latest.root.number == root.number => latest.limits = limits,
            latest => *latest = Some(Latest { root: Rc::clone(root), limits }),
        }
        let (mut useful, useless): (Vec<_>, Vec<_>) =
            self.waiting.drain(..).partition(|waiting| waiting.root == root.number && waiting.is_well());
        let taken = useful.pop();
        self.waiting = useful;
        (taken, useless)
    }

    /// Sets up one spare jail. If that fails, nothing more is tried until the next run. A persistent failure
    /// is reported then, when a jail is needed and cannot be set up either.
    pub(super) fn refill(&mut self, home: &mut Home, filters: &Filters) {
        let Some(Latest { root, limits }) = &self.latest else { return };
        let (network, binds) = (Network::Own, Vec::new());
        let wanted = Wanted { root, network, binds, commands: 1, living: false, gate: None };
        let made = start::prepare(home, filters, &wanted).map(|mut waiting| {
            // If this fails, it is tried again, and reported, when the actual limits are known.
            let _limited = waiting.limit(*limits);
            self.waiting.push(waiting);
        });
        if made.is_err() {
            self.kept = 0;
        }
    }

    /// Kills all spare jails, waits for them, and returns what can be recycled.
    pub(super) fn end_all(&mut self) -> Vec<Remains> {
        self.waiting.drain(..).map(|waiting| waiting.discard().wait()).collect()
    }
}
