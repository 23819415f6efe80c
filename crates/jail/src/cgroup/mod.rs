//! Control groups: how much memory, CPU and how many processes a sandbox may have, and what it used.
//!
//! The kernel has two interfaces, and some hosts have both at once, each with some of the controllers. A
//! [`Hierarchy`] is found once, at the launcher's start; each run takes a fresh [`Group`] from it that was made
//! ahead of time, or one that was used and shows nothing of it: what a group counted is never another run's.
//!
//! | file | what it knows |
//! |---|---|
//! | `discover` | where groups can be made on this host |
//! | `parse` | what `/proc` says about mounts and memberships |
//! | `obstacle` | why a controller cannot be used, and what mends it |
//! | `place` | this launcher's folder in one hierarchy |
//! | `owner` | telling a living launcher's folder from an abandoned one |
//! | `together` | what all groups together may have |
//! | `kill` | ends whoever is left in a group |
//! | `freezer` | groups that can be made to stand still |
//! | `v1`, `v2` | the files of each interface |

mod discover;
mod files;
mod freezer;
mod kill;
mod obstacle;
mod owner;
mod parse;
mod place;
#[cfg(test)]
mod tests;
mod together;
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

pub use owner::started;
pub use together::MemoryEvents;

use files::Gauges;
use freezer::Freezer;
use parse::Version;
use place::Place;

/// What can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Controller {
    /// Bytes of memory, without swap.
    Memory,
    /// CPU time for each period.
    Cpu,
    /// Processes and threads at one time.
    Pids,
}

impl Controller {
    /// Every controller, in the order in which they are reported.
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
/// The kernel refuses less.
const SMALLEST_CPU_QUOTA_US: u64 = 1_000;

/// What one run may have. Bounds are checked at admission; here they are written as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Thousandths of a core: 1000 is one core. The kernel takes no less than 10.
    pub cpu_millis: u32,
    /// Processes and threads, the sandbox's init among them.
    pub pids: u32,
}

impl Limits {
    fn cpu_quota_us(&self) -> u64 {
        u64::from(self.cpu_millis) * CPU_PERIOD_US / 1000
    }
}

/// What a group has used so far; a figure that this kernel does not keep is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time of all processes, living and ended.
    pub cpu: Option<Duration>,
    /// The most memory in use at one time.
    pub peak_memory_bytes: Option<u64>,
    /// The most processes and threads at one time.
    pub peak_processes: Option<u64>,
}

/// A controller that cannot be used here, why, and what mends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// What is missing.
    pub controller: Controller,
    /// What was found instead.
    pub reason: String,
    /// A command or a setting for the person at the host.
    pub remedy: String,
}

/// What the kernel refused, in which file of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The group's folder could not be made.
    #[error("cannot make a control group: {errno}")]
    Make {
        /// Why.
        errno: Errno,
    },
    /// A file of the group could not be opened.
    #[error("cannot open {file} of a control group: {errno}")]
    Open {
        /// Which.
        file: &'static str,
        /// Why.
        errno: Errno,
    },
    /// A setting was refused.
    #[error("cannot set {file} of a control group: {errno}")]
    Write {
        /// Which.
        file: &'static str,
        /// Why.
        errno: Errno,
    },
}

/// Where this process can make groups.
///
/// Dropping it removes its folders, once the groups in them are gone.
#[derive(Debug)]
pub struct Hierarchy {
    places: Arc<Vec<Place>>,
    made: AtomicU64,
    /// Groups that were used, are as good as new, and rest; with the time since when.
    free: RefCell<VecDeque<(Instant, Group)>>,
    /// Folders of dead launchers in which something was still dying, with the place beside which they lie.
    abandoned: Vec<(usize, String)>,
    /// When those are tried again, and how long after that once more.
    retry: (Instant, Duration),
    freezer: Freezer,
    /// What all groups together may have.
    memory_for_all: Cell<Option<u64>>,
}

/// How soon what a dead launcher left is tried again, and how seldom at last: something in it may never die.
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_secs(10);

impl Hierarchy {
    /// Finds where groups can be made, and removes what dead launchers left there. Never fails: what cannot be
    /// used is in the list.
    pub fn discover() -> (Hierarchy, Vec<Missing>) {
        let discover::Found { places, missing, abandoned, freezer } = discover::discover();
        let mut hierarchy = Hierarchy {
            places: Arc::new(places),
            made: AtomicU64::new(0),
            free: RefCell::default(),
            abandoned,
            retry: (Instant::now(), FIRST_RETRY),
            freezer,
            memory_for_all: Cell::new(None),
        };
        hierarchy.sweep();
        (hierarchy, missing)
    }

    /// The controllers that groups made here will have.
    pub fn controllers(&self) -> Vec<Controller> {
        let usable = |controller: &Controller| self.places.iter().any(|place| place.has(*controller));
        Controller::ALL.into_iter().filter(usable).collect()
    }

    /// Kills and removes what dead launchers left, as far as it is time for that: what is killed dies a little later.
    /// Needs no `/proc`: who is dead was established by [`Hierarchy::discover`].
    pub fn sweep(&mut self) {
        let (at, pause) = self.retry;
        let now = Instant::now();
        if self.next_sweep().is_none() || now < at {
            return;
        }
        let places = &self.places;
        self.abandoned.retain(|(place, name)| !owner::remove_abandoned(places[*place].base.as_fd(), name));
        self.freezer.sweep();
        self.retry = (now + pause, (pause * 2).min(LAST_RETRY));
    }

    /// When [`Hierarchy::sweep`] has something to do; `None` when nothing of dead launchers is left.
    pub fn next_sweep(&self) -> Option<Instant> {
        let is_clean = self.abandoned.is_empty() && self.freezer.abandoned.is_empty();
        (!is_clean).then_some(self.retry.0)
    }

    /// A group with everything set that does not depend on the run: one that was used before and shows nothing of it,
    /// or a fresh one. `ours` processes in it will be ours and not the program's.
    pub fn create(&self, ours: u32) -> Result<Group, Error> {
        match self.rested(ours) {
            Some(group) => Ok(group),
            None => self.make(ours),
        }
    }

    fn make(&self, ours: u32) -> Result<Group, Error> {
        let number = self.made.fetch_add(1, Ordering::Relaxed).to_string();
        let places = Arc::clone(&self.places);
        // From here on dropping the group removes the folders that were made, if a later step fails.
        let mut group = Group {
            places,
            number,
            ours,
            doors: Vec::new(),
            newer_doors: Box::default(),
            folder: None,
            oom: None,
            removed: false,
            freezer: None,
            gauges: Box::default(),
            account: Box::default(),
        };
        for place in self.places.iter() {
            group.open_in(place)?;
        }
        Ok(group)
    }

    /// Takes a group back that no run needs any more: it is kept if it is as good as new, and removed otherwise; or given
    /// back while a process in it is still dying, to be tried again later.
    pub fn take_back(&self, group: Group) -> Result<(), Group> {
        let plain = group.freezer.is_none();
        if plain && self.free.borrow().len() < MOST_FREE && group.is_as_good_as_new() {
            self.free.borrow_mut().push_back((Instant::now(), group));
            return Ok(());
        }
        group.remove()
    }

    /// A used group that has rested for a whole period: what one run took of its processor time is not to be missing
    /// for the next.
    fn rested(&self, ours: u32) -> Option<Group> {
        let mut free = self.free.borrow_mut();
        let rest = Duration::from_micros(CPU_PERIOD_US);
        let fits = |(since, group): &(Instant, Group)| group.ours == ours && since.elapsed() >= rest;
        let at = free.iter().position(fits)?;
        free.remove(at).map(|(_, group)| group)
    }

    /// Removes the groups that are kept.
    pub fn forget_free(&self) {
        self.free.borrow_mut().clear();
    }
}

/// How many used groups are kept.
const MOST_FREE: usize = 32;
/// What the kernel may still hold for a group that nobody is in.
const REMAINS_BYTES: u64 = 2 << 20;

/// The limits and the account of one run. Dropping it removes it when it is empty.
#[derive(Debug)]
pub struct Group {
    places: Arc<Vec<Place>>,
    number: String,
    /// How many processes of ours every run in it has.
    ours: u32,
    doors: Vec<OwnedFd>,
    newer_doors: Box<OnceCell<Vec<OwnedFd>>>,
    folder: Option<OwnedFd>,
    oom: Option<OwnedFd>,
    removed: bool,
    /// A place of its own in which it can be made to stand still.
    freezer: Option<Arc<Place>>,
    gauges: Box<Gauges>,
    account: Box<Account>,
}

/// What is known of a group without asking the kernel.
#[derive(Debug, Default)]
struct Account {
    /// What it holds its processes to.
    limits: Cell<Option<Limits>>,
    /// v1: how often the kernel said that it, or all groups together, ran out of memory.
    announced_ooms: Cell<u64>,
    /// What had happened before the run that it is for.
    events_before: Cell<MemoryEvents>,
}

impl Group {
    fn open_in(&mut self, place: &Place) -> Result<(), Error> {
        mkdirat(&place.home, &self.number, Mode::from(0o755)).map_err(|errno| Error::Make { errno })?;
        place.furnish(self)?;
        match place.version {
            Version::V1 => {
                let door = v1::door(place.slot(self))?;
                self.doors.push(door);
                if place.has(Controller::Memory) {
                    self.oom = v1::oom_event(place.slot(self))?;
                }
            }
            Version::V2 => {
                let folder = files::open_dir(place.home.as_fd(), &self.number);
                self.folder = Some(folder.map_err(|errno| Error::Make { errno })?);
            }
        }
        Ok(())
    }

    /// Sets what this run may have. For a group in which nothing runs.
    pub fn set_limits(&self, limits: &Limits) -> Result<(), Error> {
        self.begin_memory_events();
        if self.account.limits.get() == Some(*limits) {
            return Ok(());
        }
        self.account.limits.set(None);
        let limited = self.limit(limits);
        self.account.limits.set(limited.is_ok().then_some(*limits));
        limited
    }

    fn limit(&self, limits: &Limits) -> Result<(), Error> {
        self.places.iter().try_for_each(|place| place.limit(self, limits))
    }

    /// v1: files to each of which a process writes `0` to join. Empty where there is only v2.
    pub fn join_fds(&self) -> &[OwnedFd] {
        &self.doors
    }

    /// v2: the folder to name in `clone3` with `CLONE_INTO_CGROUP`. `None` where there is only v1.
    pub fn clone_into(&self) -> Option<BorrowedFd<'_>> {
        self.folder.as_ref().map(AsFd::as_fd)
    }

    /// Files by which a process of ours that the launcher did not clone can join: `0` is written to each.
    pub fn doors(&self) -> Result<impl Iterator<Item = BorrowedFd<'_>>, Error> {
        Ok(self.doors.iter().map(AsFd::as_fd).chain(self.newer_doors()?))
    }

    /// v2: files by which the launcher's side has a process join, by writing its id.
    pub fn newer_doors(&self) -> Result<impl Iterator<Item = BorrowedFd<'_>>, Error> {
        if self.newer_doors.get().is_none() {
            let newer = self.places.iter().filter(|place| place.version == Version::V2);
            let opened = newer.map(|place| v2::door(place.slot(self))).collect::<Result<Vec<_>, _>>()?;
            let _first = self.newer_doors.set(opened);
        }
        Ok(self.newer_doors.get().into_iter().flatten().map(AsFd::as_fd))
    }

    /// v1: files to which a process of that user writes `0` to join, opened as that user: the kernel looks at who opened one,
    /// so nobody else's process can be moved by it. What root opens moves every process of the host.
    pub(crate) fn doors_as(&self, uid: u32) -> Result<Vec<OwnedFd>, Error> {
        let own = rustix::process::geteuid().as_raw();
        let acted = |errno| Error::Open { file: "tasks", errno };
        crate::sys::act_as(uid).map_err(acted)?;
        let older = self.places.iter().filter(|place| place.version == Version::V1);
        let opened = older.map(|place| v1::door(place.slot(self))).collect();
        crate::sys::act_as(own).map_err(acted)?;
        opened
    }

    /// How the path of the group ends in each tree, as `/proc/PID/cgroup` shows it.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.places.iter().map(|place| format!("/{}/{}", place.name, self.number)).collect()
    }

    /// The memory in use now.
    pub fn memory(&self) -> Option<u64> {
        let place = self.with(Controller::Memory)?;
        place.slot(self).number_in(place::memory_file(place.version))
    }

    /// v1: becomes readable when the group runs out of memory, so that the rest of it can be ended. `None` on
    /// v2, where the kernel ends the whole group itself.
    pub fn oom_event(&self) -> Option<BorrowedFd<'_>> {
        self.oom.as_ref().map(AsFd::as_fd)
    }

    /// v1: how often the group, or all groups together, ran out of memory; the next time is announced again.
    pub fn drain_oom_event(&self) -> Option<u64> {
        let new = files::drain_event(self.oom.as_ref()?);
        self.account.announced_ooms.set(self.account.announced_ooms.get() + new);
        Some(self.account.announced_ooms.get())
    }

    /// How many processes were killed because memory ran out.
    pub fn oom_kills(&self) -> u64 {
        self.with(Controller::Memory).and_then(|place| place.oom_kills(self)).unwrap_or(0)
    }

    /// How many times a new process or thread was refused.
    pub fn forks_refused(&self) -> u64 {
        let place = self.with(Controller::Pids);
        place.and_then(|place| place.slot(self).value_in("pids.events", "max")).unwrap_or(0)
    }

    /// What the group has used so far.
    pub fn usage(&self) -> Usage {
        Usage {
            cpu: self.places.iter().find_map(|place| place.cpu_time(self)),
            peak_memory_bytes: self.with(Controller::Memory).and_then(|place| place.peak_memory(self)),
            peak_processes: self
                .with(Controller::Pids)
                .and_then(|place| place.slot(self).number_in("pids.peak")),
        }
    }

    /// Whether the next run can have it and nobody could tell. Its counters cannot all be set back, so those must not
    /// have moved; and only the older interface lets the others be, where making a group is also a lot of work.
    fn is_as_good_as_new(&self) -> bool {
        let older = self.places.iter().all(|place| place.version == Version::V1);
        let usage = self.usage();
        let fewest = u64::from(self.ours) + 1;
        let quiet = usage.peak_processes.is_none_or(|peak| peak <= fewest)
            && self.oom_kills() == 0
            && self.forks_refused() == 0;
        older
            && quiet
            && self.is_deserted()
            && self.memory().is_none_or(|bytes| bytes < REMAINS_BYTES)
            && self.with(Controller::Memory).is_none_or(|place| v1::forget_peak(place.slot(self)).is_ok())
    }

    /// The same as [`Group::is_empty`], where processes are counted with less effort: a run's processes are in all
    /// places or in none.
    fn is_deserted(&self) -> bool {
        let counted =
            self.with(Controller::Pids).and_then(|place| place.slot(self).number_in("pids.current"));
        counted.map_or_else(|| self.is_empty(), |count| count == 0)
    }

    /// Whether no process is left in it.
    pub fn is_empty(&self) -> bool {
        self.everywhere().all(|place| place.is_empty(self))
    }

    /// Removes the group, or gives it back while a process in it is still dying, to be tried again later.
    pub fn remove(mut self) -> Result<(), Group> {
        if self.remove_folders() { Ok(()) } else { Err(self) }
    }

    fn remove_folders(&mut self) -> bool {
        let gone = |place: &Place| owner::remove_folder(place.home.as_fd(), &self.number);
        // Not `all`: a folder that is busy is no reason to keep the next.
        self.removed = self.everywhere().filter(|place| !gone(place)).count() == 0;
        self.removed
    }

    fn with(&self, controller: Controller) -> Option<&Place> {
        self.places.iter().find(|place| place.has(controller))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.removed && self.everywhere().all(Place::is_ours) {
            self.remove_folders();
        }
    }
}
