//! This launcher's directory in one hierarchy. It contains the launcher's groups, and is removed with the
//! launcher.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, mkdirat};
use rustix::io::Errno;

use super::files::{self, Slot};
use super::owner::{self, Owner};
use super::parse::Version;
use super::{Controller, Error, Group, Limits, v1, v2};

/// Maximum number of hierarchies per process; a launcher has one, a test program a few.
const MOST_HOMES: u32 = 64;

/// The kernel charges memory in per-CPU batches, so a group at its limit may appear to have this much left.
const CHARGED_AHEAD: u64 = 4 << 20;

#[derive(Debug)]
pub(super) struct Place {
    pub(super) version: Version,
    pub(super) controllers: Vec<Controller>,
    /// v1 only: this hierarchy counts CPU time.
    pub(super) accounting: bool,
    /// v1 only: groups in this hierarchy can be frozen. On v2 every group can.
    pub(super) freezer: bool,
    /// v2 only: the child of `base` into which the processes of `base` were moved.
    pub(super) refuge: Option<String>,
    pub(super) base: OwnedFd,
    pub(super) home: OwnedFd,
    pub(super) name: String,
    maker: u32,
    /// v1 only: reports when all groups together run out of memory, and how often they did.
    all_out_of_memory: OnceLock<OwnedFd>,
    ooms_of_all: AtomicU64,
}

impl Place {
    /// Creates the directory in `base` and locks it, so that no other launcher considers it abandoned.
    pub(super) fn make(base: OwnedFd, owner: Owner, version: Version) -> rustix::io::Result<Place> {
        let name = make_home(&base, owner)?;
        let home = files::open_dir(base.as_fd(), &name)?;
        // Without the lock, the name alone identifies the owner.
        owner::claim(home.as_fd());
        let maker = std::process::id();
        Ok(Place {
            version,
            controllers: Vec::new(),
            accounting: false,
            freezer: false,
            refuge: None,
            base,
            home,
            name,
            maker,
            all_out_of_memory: OnceLock::new(),
            ooms_of_all: AtomicU64::new(0),
        })
    }

    pub(super) fn slot<'a>(&'a self, group: &'a Group) -> Slot<'a> {
        Slot { home: self.home.as_fd(), number: &group.number, gauges: &group.gauges }
    }

    pub(super) fn has(&self, controller: Controller) -> bool {
        self.controllers.contains(&controller)
    }

    /// Returns whether this process created the directory: a child that unwinds after a `clone` must not
    /// remove its parent's.
    pub(super) fn is_ours(&self) -> bool {
        self.maker == std::process::id()
    }

    pub(super) fn furnish(&self, group: &Group) -> Result<(), Error> {
        let furnish = match self.version {
            Version::V1 => v1::furnish,
            Version::V2 => v2::furnish,
        };
        self.controllers.iter().try_for_each(|controller| furnish(self.slot(group), *controller))
    }

    pub(super) fn limit(&self, group: &Group, limits: &Limits) -> Result<(), Error> {
        let limit = match self.version {
            Version::V1 => v1::limit,
            Version::V2 => v2::limit,
        };
        self.controllers.iter().try_for_each(|controller| limit(self.slot(group), *controller, limits))
    }

    /// Limits the memory of all groups in this directory together.
    pub(super) fn limit_all(&self, memory_bytes: u64) -> rustix::io::Result<()> {
        let file = match self.version {
            Version::V1 => v1::limit_file(Controller::Memory),
            Version::V2 => v2::MEMORY_LIMIT,
        };
        files::write(self.home.as_fd(), file, &memory_bytes.to_string())
    }

    /// Returns the memory limit of the parent group, if any.
    pub(super) fn memory_above(&self) -> Option<u64> {
        let file = match self.version {
            Version::V1 => v1::limit_file(Controller::Memory),
            Version::V2 => v2::MEMORY_LIMIT,
        };
        files::read(self.base.as_fd(), file).ok()?.trim().parse().ok()
    }

    /// Returns the memory used by all groups in this directory together.
    pub(super) fn memory_of_all(&self) -> Option<u64> {
        let file = memory_file(self.version);
        files::read(self.home.as_fd(), file).ok()?.trim().parse().ok()
    }

    /// Registers for notifications that all groups together ran out of memory. v2 counts that in the group
    /// itself.
    pub(super) fn watch_all(&self) {
        if self.version == Version::V1 && self.all_out_of_memory.get().is_none() {
            let gauges = files::Gauges::default();
            let slot = Slot { home: self.home.as_fd(), number: ".", gauges: &gauges };
            // If the kernel does not support this, the group's own count must suffice.
            if let Ok(Some(event)) = v1::oom_event(slot) {
                let _first = self.all_out_of_memory.set(event);
            }
        }
    }

    /// Returns how often all groups together ran out of memory, if the kernel reports it.
    pub(super) fn ooms_of_all(&self) -> u64 {
        let new = self.all_out_of_memory.get().map_or(0, files::drain_event);
        self.ooms_of_all.fetch_add(new, Ordering::Relaxed) + new
    }

    /// Returns how often a group ran out of its own memory. On v1 this is negative if all groups together ran
    /// out of memory before the group was created; only differences are meaningful.
    pub(super) fn own_ooms(&self, group: &Group) -> i64 {
        match self.version {
            Version::V1 => match group.drain_oom_event() {
                // Every group is notified of events in its parent, and the parent is notified first.
                Some(announced) => announced as i64 - self.ooms_of_all() as i64,
                None => self.has_been_full(group).into(),
            },
            Version::V2 => self.slot(group).value_in("memory.events", "oom").unwrap_or(0) as i64,
        }
    }

    fn has_been_full(&self, group: &Group) -> bool {
        let limit = group.account.limits.get().map(|limits| limits.memory_bytes);
        limit.zip(self.peak_memory(group)).is_some_and(|(limit, peak)| peak + CHARGED_AHEAD >= limit)
    }

    pub(super) fn oom_kills(&self, group: &Group) -> Option<u64> {
        match self.version {
            Version::V1 => v1::oom_kills(self.slot(group)),
            Version::V2 => v2::oom_kills(self.slot(group)),
        }
    }

    pub(super) fn cpu_time(&self, group: &Group) -> Option<Duration> {
        match self.version {
            Version::V1 => self.accounting.then(|| v1::cpu_time(self.slot(group)))?,
            Version::V2 => v2::cpu_time(self.slot(group)),
        }
    }

    pub(super) fn peak_memory(&self, group: &Group) -> Option<u64> {
        match self.version {
            Version::V1 => v1::peak_memory(self.slot(group)),
            Version::V2 => v2::peak_memory(self.slot(group)),
        }
    }

    pub(super) fn can_freeze(&self) -> bool {
        match self.version {
            Version::V1 => self.freezer,
            Version::V2 => true,
        }
    }

    pub(super) fn freeze(&self, group: &Group, frozen: bool) -> Result<(), Error> {
        match self.version {
            Version::V1 => v1::freeze(self.slot(group), frozen),
            Version::V2 => v2::freeze(self.slot(group), frozen),
        }
    }

    pub(super) fn is_frozen(&self, group: &Group) -> bool {
        match self.version {
            Version::V1 => v1::is_frozen(self.slot(group)),
            Version::V2 => v2::is_frozen(self.slot(group)),
        }
    }

    /// Returns whether the group has no processes. An unreadable group counts as populated, unless it no
    /// longer exists.
    pub(super) fn is_empty(&self, group: &Group) -> bool {
        match files::read(self.home.as_fd(), &format!("{}/{}", group.number, v2::MEMBERS)) {
            Ok(members) => members.is_empty(),
            Err(errno) => errno == Errno::NOENT,
        }
    }
}

/// Returns the name of the file with the memory in use.
pub(super) fn memory_file(version: Version) -> &'static str {
    match version {
        Version::V1 => "memory.usage_in_bytes",
        Version::V2 => "memory.current",
    }
}

/// Creates the directory. A second hierarchy in the same process gets a numbered name, which [`Owner::of`]
/// parses as the same owner.
fn make_home(base: &OwnedFd, owner: Owner) -> rustix::io::Result<String> {
    for copy in 0..MOST_HOMES {
        let name = if copy == 0 { owner.to_string() } else { format!("{owner}.{copy}") };
        match mkdirat(base, &name, Mode::from(0o755)) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EXIST)
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        owner::remove_folder(self.base.as_fd(), &self.name);
        if let Some(refuge) = &self.refuge {
            v2::return_home(self.base.as_fd(), refuge);
        }
    }
}
