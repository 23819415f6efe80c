//! Reaps what was killed, then recycles or releases its resources.
//!
//! ```text
//! killed ──its processes exit──▶ reaped ──cgroup empty──▶ cgroup recycled, ids free
//!                                   └──cgroup busy──▶ removal retried ──▶ removed, ids free
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::process::ProcessHandle;
use super::recyclable::{IdSource, Recyclable};
use super::setup::LauncherContext;
use super::warm::builder::JailBuilder;
use crate::cgroup::Group;
use crate::sys;

/// How often the launcher looks again at what is not reaped or removed yet.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum busy cgroups whose removal is retried at a time.
const MAX_REMOVALS: usize = 32;

/// A killed jail. PID 1 exits once the launcher has reaped every other process in the jail.
pub(super) struct DyingJail {
    /// The warm child in it.
    pub(super) main: Option<ProcessHandle>,
    pub(super) init: Option<ProcessHandle>,
    /// For a warm jail, where it came from.
    pub(super) warm: Option<WarmOrigin>,
    pub(super) recyclable: Recyclable,
}

/// The origin of a warm jail.
pub(super) struct WarmOrigin {
    /// The number of the jail.
    pub(super) number: u64,
    /// Keeps the builder alive, and with it the pid namespace of the jail.
    pub(super) builder: Rc<JailBuilder>,
    /// Whether the builder has not answered yet: the jail is still being built.
    pub(super) is_building: bool,
}

impl DyingJail {
    /// Reaps the processes that have exited, and returns whether none is left.
    fn reap(&mut self) -> bool {
        for process in [&mut self.main, &mut self.init] {
            if let Some(exited) = process.take_if(|process| process.has_exited()) {
                let _reaped = sys::wait_pidfd(exited.pidfd.as_fd());
            }
        }
        let may_come = self.warm.as_ref().is_some_and(|warm| warm.is_building && !warm.builder.has_exited());
        self.main.is_none() && self.init.is_none() && !may_come
    }

    /// Waits until every process has exited, and returns what can be recycled. Must not be called in the event
    /// loop, unless PID 1 has not done anything yet.
    pub(super) fn wait(self) -> Recyclable {
        for process in self.main.iter().chain(&self.init) {
            let _reaped = sys::wait_pidfd(process.pidfd.as_fd());
        }
        self.recyclable
    }

    fn owns_pid(&self, pid: i32) -> bool {
        self.main.iter().chain(&self.init).any(|process| process.pid == pid)
    }
}

/// Everything that was killed and is not reaped yet, and cgroups that could not be removed yet.
pub(super) struct Reaper {
    dying: Vec<DyingJail>,
    /// Cgroups that were still busy, each with the ids to free once it is removed.
    busy_cgroups: Vec<(Group, IdSource)>,
    /// When their removal was last tried.
    last_removal: Instant,
}

impl Reaper {
    pub(super) fn new() -> Self {
        Self { dying: Vec::new(), busy_cgroups: Vec::new(), last_removal: Instant::now() }
    }

    /// Takes over a killed jail.
    pub(super) fn push(&mut self, jail: DyingJail) {
        self.dying.push(jail);
    }

    /// Handles the builder's answer about a jail that was killed while it was being built. PID 1 exits by
    /// itself, because its liveness pipe is closed.
    pub(super) fn set_built(&mut self, context: &LauncherContext, number: u64, init: Option<OwnedFd>) {
        let is_it = |jail: &&mut DyingJail| jail.warm.as_ref().is_some_and(|warm| warm.number == number);
        let Some(jail) = self.dying.iter_mut().find(is_it) else { return };
        let pid = init.as_ref().and_then(|pidfd| context.pid_of(pidfd).ok());
        jail.init = init.zip(pid).map(|(pidfd, pid)| ProcessHandle { pid, pidfd });
        jail.warm.iter_mut().for_each(|warm| warm.is_building = false);
    }

    /// Recycles the cgroup of a jail whose processes are all reaped. Returns its ids, which are then free,
    /// unless the cgroup is busy: a process may still run under them.
    pub(super) fn recycle(
        &mut self,
        context: &mut LauncherContext,
        Recyclable { group, ids }: Recyclable,
    ) -> Option<IdSource> {
        match group.and_then(|group| context.groups.recycle(group).err()) {
            None => Some(ids),
            Some(group) => {
                self.busy_cgroups.push((group, ids));
                None
            }
        }
    }

    /// Reaps processes that have exited, and from time to time retries the removal of busy cgroups. Returns the
    /// ids that are free now.
    pub(super) fn sweep(&mut self, context: &mut LauncherContext) -> Vec<IdSource> {
        let reaped: Vec<_> = self.dying.extract_if(.., DyingJail::reap).collect();
        let mut free: Vec<_> =
            reaped.into_iter().filter_map(|jail| self.recycle(context, jail.recyclable)).collect();
        if self.last_removal.elapsed() >= SWEEP_INTERVAL {
            self.last_removal = Instant::now();
            free.extend(self.remove_busy_cgroups());
        }
        free
    }

    /// Retries the removal of busy cgroups, some at a time, and returns the ids that are free now. Those that
    /// are not tried now come first next time.
    pub(super) fn remove_busy_cgroups(&mut self) -> Vec<IdSource> {
        let tried = self.busy_cgroups.len().min(MAX_REMOVALS);
        let busy: Vec<_> = self.busy_cgroups.drain(..tried).collect();
        let mut free = Vec::new();
        for (group, ids) in busy {
            match group.kill_and_remove() {
                Ok(()) => free.push(ids),
                Err(group) => self.busy_cgroups.push((group, ids)),
            }
        }
        free
    }

    /// Returns whether a killed warm jail remains to be reaped. Its zygote may have had children that it did
    /// not report.
    pub(super) fn has_warm_jails(&self) -> bool {
        self.dying.iter().any(|jail| jail.warm.is_some())
    }

    /// Returns whether nothing is left to reap or to remove.
    pub(super) fn is_empty(&self) -> bool {
        self.dying.is_empty() && self.busy_cgroups.is_empty()
    }

    /// Returns whether a process will be reaped here.
    pub(super) fn owns_pid(&self, pid: i32) -> bool {
        self.dying.iter().any(|jail| jail.owns_pid(pid))
    }
}
