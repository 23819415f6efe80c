//! Cgroups: limit memory, CPU and processes of a sandbox, and measure its usage.
//!
//! The kernel has two interfaces, and some hosts have both at once, each with some of the controllers. The
//! launcher finds a [`Hierarchy`] once, at its start. Each run takes a [`Group`] from it: one created in
//! advance, or a recycled one without traces of earlier use, so that no run sees another's counters.
//!
//! | file | purpose |
//! |---|---|
//! | `discover` | finds where cgroups can be created on this host |
//! | `parse` | parses mounts and memberships in `/proc` |
//! | `obstacle` | why a controller cannot be used, and how to fix that |
//! | `launcher_dir` | this launcher's directory in one hierarchy |
//! | `owner` | distinguishes a live launcher's directory from an abandoned one |
//! | `total_memory` | limits the memory of all groups together |
//! | `kill` | kills the processes left in a group |
//! | `freezer` | groups that can be frozen |
//! | `v1`, `v2` | the files of each interface |

mod discover;
#[cfg(test)]
mod dying_launcher_tests;
mod files;
mod freezer;
mod kill;
mod launcher_dir;
mod obstacle;
mod owner;
mod parse;
#[cfg(test)]
mod tests;
mod total_memory;
mod v1;
mod v2;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, mkdirat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub use owner::process_start_time;
pub use total_memory::MemoryEvents;

use files::OpenFiles;
use freezer::Freezer;
use launcher_dir::LauncherDir;
use parse::CgroupVersion;

/// A resource controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Controller {
    /// Bytes of memory, without swap.
    Memory,
    /// CPU time per period.
    Cpu,
    /// Number of processes and threads.
    Pids,
}

impl Controller {
    /// All controllers, in reporting order.
    pub const ALL: [Controller; 3] = [Controller::Memory, Controller::Cpu, Controller::Pids];
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Controller::Memory => "memory",
            Controller::Cpu => "cpu",
            Controller::Pids => "pids",
        })
    }
}

const CPU_PERIOD_US: u64 = 100_000;
/// Smallest quota that the kernel accepts.
const MIN_CPU_QUOTA_US: u64 = 1_000;

/// Limits of one group. Admission has checked their bounds; here they are written as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLimits {
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// CPU share in thousandths of a core. The kernel accepts no less than 10.
    pub cpu_millis: u32,
    /// Number of processes and threads, including the jail's init.
    pub pids: u32,
}

impl GroupLimits {
    fn cpu_quota_us(&self) -> u64 {
        u64::from(self.cpu_millis) * CPU_PERIOD_US / 1000
    }
}

/// Usage of a group so far. Figures that this kernel does not provide are absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupUsage {
    /// CPU time of all processes, running and ended.
    pub cpu: Option<Duration>,
    /// Peak memory usage.
    pub peak_memory_bytes: Option<u64>,
    /// Peak number of processes and threads.
    pub peak_processes: Option<u64>,
}

/// A controller that cannot be used here, with the reason and a remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingController {
    /// The missing controller.
    pub controller: Controller,
    /// Why it cannot be used.
    pub reason: String,
    /// A command or setting for the administrator of the host.
    pub remedy: String,
}

/// An operation on a group that the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The group's directory could not be created.
    #[error("cannot create a cgroup: {errno}")]
    Make {
        /// Errno of the call.
        errno: Errno,
    },
    /// A file of the group could not be opened.
    #[error("cannot open {file} of a cgroup: {errno}")]
    Open {
        /// Name of the file.
        file: &'static str,
        /// Errno of the call.
        errno: Errno,
    },
    /// A setting could not be written.
    #[error("cannot set {file} of a cgroup: {errno}")]
    Write {
        /// Name of the file.
        file: &'static str,
        /// Errno of the call.
        errno: Errno,
    },
}

/// The cgroup directories in which this process creates groups.
///
/// Its directories are removed when it and all its groups have been dropped.
#[derive(Debug)]
pub struct Hierarchy {
    launcher_dirs: Arc<Vec<LauncherDir>>,
    next_number: AtomicU64,
    /// Recycled groups, with the time since when they have been unused.
    reusable: RefCell<VecDeque<(Instant, Group)>>,
    /// Directories of dead or dying launchers that are not removed yet, each with the index of the launcher
    /// directory beside it.
    abandoned: Vec<(usize, owner::AbandonedDir)>,
    /// Time of the next sweep of `abandoned`, and the delay after that.
    retry: (Instant, Duration),
    freezer: Freezer,
    /// Memory limit of all groups together.
    total_memory_limit: Cell<Option<u64>>,
}

/// First and longest delay between sweeps: a process left by a dead launcher may never die.
const MIN_SWEEP_DELAY: Duration = Duration::from_millis(10);
const MAX_SWEEP_DELAY: Duration = Duration::from_secs(10);

impl Hierarchy {
    /// Finds where groups can be created, and removes what dead launchers left there. Never fails:
    /// controllers that cannot be used are returned in the list.
    pub fn discover() -> (Hierarchy, Vec<MissingController>) {
        let discover::Discovery { launcher_dirs, missing, abandoned, freezer } = discover::discover();
        let mut hierarchy = Hierarchy {
            launcher_dirs: Arc::new(launcher_dirs),
            next_number: AtomicU64::new(0),
            reusable: RefCell::default(),
            abandoned,
            retry: (Instant::now(), MIN_SWEEP_DELAY),
            freezer,
            total_memory_limit: Cell::new(None),
        };
        hierarchy.sweep();
        (hierarchy, missing)
    }

    /// Returns the controllers of the groups created here.
    pub fn controllers(&self) -> Vec<Controller> {
        let usable = |controller: &Controller| self.launcher_dirs.iter().any(|dir| dir.has(*controller));
        Controller::ALL.into_iter().filter(usable).collect()
    }

    /// Kills and removes what dead launchers left, if a sweep is due; killed processes take time to die.
    /// Needs no `/proc`, because [`Hierarchy::discover`] established which launchers are dead.
    pub fn sweep(&mut self) {
        let (at, pause) = self.retry;
        let now = Instant::now();
        if self.next_sweep().is_none() || now < at {
            return;
        }
        let launcher_dirs = &self.launcher_dirs;
        self.abandoned.retain(|(at, dir)| !owner::remove_abandoned(launcher_dirs[*at].parent.as_fd(), dir));
        self.freezer.sweep();
        self.retry = (now + pause, (pause * 2).min(MAX_SWEEP_DELAY));
    }

    /// Returns when [`Hierarchy::sweep`] is due next; `None` if nothing of dead launchers is left.
    pub fn next_sweep(&self) -> Option<Instant> {
        let is_clean = self.abandoned.is_empty() && self.freezer.abandoned.is_empty();
        (!is_clean).then_some(self.retry.0)
    }

    /// Returns a group with all settings that do not depend on the run: a recycled one without traces of
    /// earlier use, or a new one. `ours` is the number of processes in it that belong to us, not to the
    /// program.
    pub fn create(&self, ours: u32) -> Result<Group, Error> {
        match self.take_reusable(ours) {
            Some(group) => Ok(group),
            None => self.make(ours),
        }
    }

    fn make(&self, ours: u32) -> Result<Group, Error> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed).to_string();
        let launcher_dirs = Arc::clone(&self.launcher_dirs);
        // From here on, dropping the group removes the directories created so far if a later step fails.
        let mut group = Group {
            launcher_dirs,
            number,
            own_processes: ours,
            v1_join_fds: Vec::new(),
            v2_join_fds: Box::default(),
            v2_dir: None,
            oom_eventfd: None,
            removed: false,
            freezer_dir: None,
            open_files: Box::default(),
            cache: Box::default(),
        };
        for dir in self.launcher_dirs.iter() {
            group.open_in(dir)?;
        }
        Ok(group)
    }

    /// Recycles a group that its run no longer needs, or removes it if it shows traces of use. Returns the
    /// group if a process in it is still dying, to be tried again later.
    pub fn recycle(&self, group: Group) -> Result<(), Group> {
        let plain = group.freezer_dir.is_none();
        if plain && self.reusable.borrow().len() < MAX_REUSABLE && group.is_reusable() {
            self.reusable.borrow_mut().push_back((Instant::now(), group));
            return Ok(());
        }
        group.remove()
    }

    /// Returns a recycled group that has been unused for a whole CPU period, so that the CPU time used by the
    /// last run does not count against the next one.
    fn take_reusable(&self, ours: u32) -> Option<Group> {
        let mut free = self.reusable.borrow_mut();
        let rest = Duration::from_micros(CPU_PERIOD_US);
        let fits = |(since, group): &(Instant, Group)| group.own_processes == ours && since.elapsed() >= rest;
        let at = free.iter().position(fits)?;
        free.remove(at).map(|(_, group)| group)
    }

    /// Removes all recycled groups.
    pub fn clear_reusable(&self) {
        self.reusable.borrow_mut().clear();
    }
}

/// Maximum number of recycled groups.
const MAX_REUSABLE: usize = 32;
/// Memory that the kernel may still charge to an empty group.
const MAX_RESIDUE_BYTES: u64 = 2 << 20;

/// A cgroup with limits and counters for one run. Dropping it removes it if it is empty.
#[derive(Debug)]
pub struct Group {
    launcher_dirs: Arc<Vec<LauncherDir>>,
    number: String,
    /// Number of processes in every run that belong to us.
    own_processes: u32,
    v1_join_fds: Vec<OwnedFd>,
    v2_join_fds: Box<OnceCell<Vec<OwnedFd>>>,
    v2_dir: Option<OwnedFd>,
    oom_eventfd: Option<OwnedFd>,
    removed: bool,
    /// A separate hierarchy in which it can be frozen.
    freezer_dir: Option<Arc<LauncherDir>>,
    open_files: Box<OpenFiles>,
    cache: Box<GroupCache>,
}

/// State of a group that is known without asking the kernel.
#[derive(Debug, Default)]
struct GroupCache {
    /// The limits that are currently set.
    limits: Cell<Option<GroupLimits>>,
    /// v1: how often the kernel reported that this group, or all groups together, ran out of memory.
    announced_ooms: Cell<u64>,
    /// The memory events before the current run.
    events_before: Cell<MemoryEvents>,
}

impl Group {
    fn open_in(&mut self, dir: &LauncherDir) -> Result<(), Error> {
        mkdirat(&dir.fd, &self.number, Mode::from(0o755)).map_err(|errno| Error::Make { errno })?;
        dir.apply_defaults(self)?;
        match dir.version {
            CgroupVersion::V1 => {
                let join_fd = v1::open_join_file(dir.group_dir(self))?;
                self.v1_join_fds.push(join_fd);
                if dir.has(Controller::Memory) {
                    self.oom_eventfd = v1::oom_event(dir.group_dir(self))?;
                }
            }
            CgroupVersion::V2 => {
                let folder = files::open_dir(dir.fd.as_fd(), &self.number);
                self.v2_dir = Some(folder.map_err(|errno| Error::Make { errno })?);
            }
        }
        Ok(())
    }

    /// Sets the limits of the run. The group must be empty.
    pub fn set_limits(&self, limits: &GroupLimits) -> Result<(), Error> {
        self.reset_memory_events();
        if self.cache.limits.get() == Some(*limits) {
            return Ok(());
        }
        self.cache.limits.set(None);
        let limited = self.limit(limits);
        self.cache.limits.set(limited.is_ok().then_some(*limits));
        limited
    }

    fn limit(&self, limits: &GroupLimits) -> Result<(), Error> {
        self.launcher_dirs.iter().try_for_each(|dir| dir.set_limits(self, limits))
    }

    /// v1: files to each of which a process writes `0` to join. Empty if there is only v2.
    pub fn v1_join_fds(&self) -> &[OwnedFd] {
        &self.v1_join_fds
    }

    /// v2: the directory to pass to `clone3` with `CLONE_INTO_CGROUP`. `None` if there is only v1.
    pub fn v2_dir_fd(&self) -> Option<BorrowedFd<'_>> {
        self.v2_dir.as_ref().map(AsFd::as_fd)
    }

    /// Returns the join fds of both versions, for a process of ours that the launcher did not clone: it
    /// writes `0` to each.
    pub fn join_fds(&self) -> Result<impl Iterator<Item = BorrowedFd<'_>>, Error> {
        Ok(self.v1_join_fds.iter().map(AsFd::as_fd).chain(self.v2_join_fds()?))
    }

    /// v2: files to which the launcher or a builder writes a process id to move that process into the group.
    pub fn v2_join_fds(&self) -> Result<impl Iterator<Item = BorrowedFd<'_>>, Error> {
        if self.v2_join_fds.get().is_none() {
            let newer = self.launcher_dirs.iter().filter(|dir| dir.version == CgroupVersion::V2);
            let opened =
                newer.map(|dir| v2::open_join_file(dir.group_dir(self))).collect::<Result<Vec<_>, _>>()?;
            let _first = self.v2_join_fds.set(opened);
        }
        Ok(self.v2_join_fds.get().into_iter().flatten().map(AsFd::as_fd))
    }

    /// v1: files to which a process of this user writes `0` to join, opened as that user. The kernel checks
    /// who opened the file, so these cannot move other users' processes; files opened by root could move
    /// every process of the host.
    pub(crate) fn v1_join_fds_as(&self, uid: u32) -> Result<Vec<OwnedFd>, Error> {
        let own = rustix::process::geteuid().as_raw();
        let failed = |errno| Error::Open { file: "tasks", errno };
        crate::sys::set_effective_uid(uid).map_err(failed)?;
        let older = self.launcher_dirs.iter().filter(|dir| dir.version == CgroupVersion::V1);
        let opened = older.map(|dir| v1::open_join_file(dir.group_dir(self))).collect();
        crate::sys::set_effective_uid(own).map_err(failed)?;
        opened
    }

    /// Returns the suffix of the group's path in each hierarchy, as shown in `/proc/PID/cgroup`.
    pub(crate) fn path_suffixes(&self) -> Vec<String> {
        self.launcher_dirs.iter().map(|dir| format!("/{}/{}", dir.name, self.number)).collect()
    }

    /// Returns the memory in use now.
    pub fn memory_in_use(&self) -> Option<u64> {
        let dir = self.dir_with(Controller::Memory)?;
        dir.group_dir(self).number_in(launcher_dir::memory_usage_file(dir.version))
    }

    /// v1: an eventfd that becomes readable when the group runs out of memory, so that its other processes
    /// can be killed. `None` on v2, where the kernel kills the whole group.
    pub fn oom_event(&self) -> Option<BorrowedFd<'_>> {
        self.oom_eventfd.as_ref().map(AsFd::as_fd)
    }

    /// v1: returns how often this group, or all groups together, ran out of memory, and resets the eventfd.
    pub fn drain_oom_event(&self) -> Option<u64> {
        let new = files::drain_event(self.oom_eventfd.as_ref()?);
        self.cache.announced_ooms.set(self.cache.announced_ooms.get() + new);
        Some(self.cache.announced_ooms.get())
    }

    /// Returns how many processes were killed because memory ran out.
    pub fn oom_kills(&self) -> u64 {
        self.dir_with(Controller::Memory).and_then(|dir| dir.oom_kills(self)).unwrap_or(0)
    }

    /// Returns how often a new process or thread was refused.
    pub fn forks_refused(&self) -> u64 {
        self.dir_with(Controller::Pids)
            .and_then(|dir| dir.group_dir(self).value_in("pids.events", "max"))
            .unwrap_or(0)
    }

    /// Returns the usage of the group so far.
    pub fn usage(&self) -> GroupUsage {
        GroupUsage {
            cpu: self.launcher_dirs.iter().find_map(|dir| dir.cpu_time(self)),
            peak_memory_bytes: self.dir_with(Controller::Memory).and_then(|dir| dir.peak_memory(self)),
            peak_processes: self
                .dir_with(Controller::Pids)
                .and_then(|dir| dir.group_dir(self).number_in("pids.peak")),
        }
    }

    /// Returns whether another run can use the group without seeing traces of this one. Some counters cannot
    /// be reset, so they must be unchanged. Only v1 allows resetting the rest, and only there is creating a
    /// group expensive.
    fn is_reusable(&self) -> bool {
        let older = self.launcher_dirs.iter().all(|dir| dir.version == CgroupVersion::V1);
        let usage = self.usage();
        let fewest = u64::from(self.own_processes) + 1;
        let quiet = usage.peak_processes.is_none_or(|peak| peak <= fewest)
            && self.oom_kills() == 0
            && self.forks_refused() == 0;
        older
            && quiet
            && self.has_no_processes()
            && self.memory_in_use().is_none_or(|bytes| bytes < MAX_RESIDUE_BYTES)
            && self
                .dir_with(Controller::Memory)
                .is_none_or(|dir| v1::reset_peak_memory(dir.group_dir(self)).is_ok())
    }

    /// Returns whether no process is left, like [`Group::is_empty`] but cheaper where processes are counted:
    /// a run's processes are in all hierarchies or in none.
    fn has_no_processes(&self) -> bool {
        self.process_count().map_or_else(|| self.is_empty(), |count| count == 0)
    }

    /// Returns whether no process is left in the group.
    pub fn is_empty(&self) -> bool {
        self.dirs().all(|dir| dir.is_empty(self))
    }

    /// Removes the group. Returns it if a process in it is still dying, to be tried again later.
    pub fn remove(mut self) -> Result<(), Group> {
        if self.remove_folders() { Ok(()) } else { Err(self) }
    }

    fn remove_folders(&mut self) -> bool {
        let gone = |dir: &LauncherDir| files::remove_folder(dir.fd.as_fd(), &self.number);
        // Not `all`, which would stop at the first busy directory.
        self.removed = self.dirs().filter(|dir| !gone(dir)).count() == 0;
        self.removed
    }

    fn dir_with(&self, controller: Controller) -> Option<&LauncherDir> {
        self.launcher_dirs.iter().find(|dir| dir.has(controller))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.removed && self.dirs().all(LauncherDir::was_created_here) {
            self.remove_folders();
        }
    }
}
