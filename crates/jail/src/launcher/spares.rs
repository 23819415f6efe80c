//! Shells made before they are needed, for the root that was asked for last. Each is used once.

use std::rc::Rc;

use super::home::Home;
use super::start::{self, Filters, Remains, Waiting, Wanted};
use crate::cgroup;
use crate::spec::{Jail, Network};
use crate::template::Root;

/// As many as a short burst takes; the launcher makes more whenever it has nothing else to do.
const KEPT: usize = 4;

#[derive(Default)]
pub(super) struct Spares {
    waiting: Vec<Waiting>,
    /// What was asked for last.
    latest: Option<Latest>,
    /// How many are worth having: none for a launcher that runs one thing and ends.
    kept: usize,
    runs: usize,
}

/// A root, where it stands, and the limits of the jail that wanted it: the next one is likely to want the same.
struct Latest {
    root: Rc<Root>,
    limits: cgroup::Limits,
}

impl Spares {
    pub(super) fn wanting(&self) -> bool {
        self.waiting.len() < self.kept
    }

    /// Whether a process is the PID 1 of one of them.
    pub(super) fn knows(&self, pid: i32) -> bool {
        self.waiting.iter().any(|waiting| waiting.pid() == pid)
    }

    pub(super) fn none_left(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Notes that a jail wants this root; gives a shell for it if there is one that is well, and those that are of
    /// no use any more.
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

    /// Makes one. A failure shows, with its name, when one is needed and cannot be made then either; until the next
    /// run nothing more is tried.
    pub(super) fn refill(&mut self, home: &mut Home, filters: &Filters) {
        let Some(Latest { root, limits }) = &self.latest else { return };
        let (network, binds) = (Network::Own, Vec::new());
        let wanted = Wanted { root, network, binds, commands: 1, living: false, gate: None };
        let made = start::prepare(home, filters, &wanted).map(|mut waiting| {
            // Where it does not work now it is tried again, and reported, when the limits are known.
            let _limited = waiting.limit(*limits);
            self.waiting.push(waiting);
        });
        if made.is_err() {
            self.kept = 0;
        }
    }

    /// Ends all of them; gives what is left of them.
    pub(super) fn end_all(&mut self) -> Vec<Remains> {
        self.waiting.drain(..).map(|waiting| waiting.discard().wait()).collect()
    }
}
