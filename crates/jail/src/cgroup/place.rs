//! A folder of this launcher's own in one hierarchy, in which its groups are made; removed with the launcher.

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

/// How many hierarchies one process may hold at a time; a launcher has one, a test program a few.
const MOST_HOMES: u32 = 64;

/// The kernel charges memory in portions, for each processor: a group at its limit may lack so much of it.
const CHARGED_AHEAD: u64 = 4 << 20;

#[derive(Debug)]
pub(super) struct Place {
    pub(super) version: Version,
    pub(super) controllers: Vec<Controller>,
    /// v1 only: this tree counts CPU time.
    pub(super) accounting: bool,
    /// v1 only: this tree can have its groups stand still. On v2 every group can.
    pub(super) freezer: bool,
    /// v2 only: the child of `base` into which its processes moved to make way.
    pub(super) refuge: Option<String>,
    pub(super) base: OwnedFd,
    pub(super) home: OwnedFd,
    pub(super) name: String,
    maker: u32,
    /// v1 only: tells when all groups together run out of memory, and how often they did.
    all_out_of_memory: OnceLock<OwnedFd>,
    ooms_of_all: AtomicU64,
}

impl Place {
    /// Makes the folder in `base` and locks it, so that no other launcher takes it for abandoned.
    pub(super) fn make(base: OwnedFd, owner: Owner, version: Version) -> rustix::io::Result<Place> {
        let name = make_home(&base, owner)?;
        let home = files::open_dir(base.as_fd(), &name)?;
        // Without the lock the name alone still says whose it is.
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

    /// A child that unwinds out of a `clone` must not remove what belongs to its parent.
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

    /// Limits the memory of all groups in this place together.
    pub(super) fn limit_all(&self, memory_bytes: u64) -> rustix::io::Result<()> {
        let file = match self.version {
            Version::V1 => v1::limit_file(Controller::Memory),
            Version::V2 => v2::MEMORY_LIMIT,
        };
        files::write(self.home.as_fd(), file, &memory_bytes.to_string())
    }

    /// What the group above this place may have, where that is limited.
    pub(super) fn memory_above(&self) -> Option<u64> {
        let file = match self.version {
            Version::V1 => v1::limit_file(Controller::Memory),
            Version::V2 => v2::MEMORY_LIMIT,
        };
        files::read(self.base.as_fd(), file).ok()?.trim().parse().ok()
    }

    /// The memory that all groups in this place together use.
    pub(super) fn memory_of_all(&self) -> Option<u64> {
        let file = memory_file(self.version);
        files::read(self.home.as_fd(), file).ok()?.trim().parse().ok()
    }

    /// Has the kernel tell when all groups together run out of memory. v2 counts that in the group that did.
    pub(super) fn watch_all(&self) {
        if self.version == Version::V1 && self.all_out_of_memory.get().is_none() {
            let gauges = files::Gauges::default();
            let slot = Slot { home: self.home.as_fd(), number: ".", gauges: &gauges };
            // Where the kernel cannot tell, a group's own count has to do.
            if let Ok(Some(event)) = v1::oom_event(slot) {
                let _first = self.all_out_of_memory.set(event);
            }
        }
    }

    /// How often all groups together ran out of memory, where that is told.
    pub(super) fn ooms_of_all(&self) -> u64 {
        let new = self.all_out_of_memory.get().map_or(0, files::drain_event);
        self.ooms_of_all.fetch_add(new, Ordering::Relaxed) + new
    }

    /// How often a group ran out of its own memory. Below zero, on v1, where all groups together ran out of theirs before it
    /// was made: only the difference of two counts means something.
    pub(super) fn own_ooms(&self, group: &Group) -> i64 {
        match self.version {
            Version::V1 => match group.drain_oom_event() {
                // Every group is told of what happens above it, and the one above is told first.
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

    /// An unreadable group counts as inhabited, unless it is gone.
    pub(super) fn is_empty(&self, group: &Group) -> bool {
        match files::read(self.home.as_fd(), &format!("{}/{}", group.number, v2::MEMBERS)) {
            Ok(members) => members.is_empty(),
            Err(errno) => errno == Errno::NOENT,
        }
    }
}

/// Which file has the memory in use.
pub(super) fn memory_file(version: Version) -> &'static str {
    match version {
        Version::V1 => "memory.usage_in_bytes",
        Version::V2 => "memory.current",
    }
}

/// A second hierarchy in the same process gets a numbered name, which [`Owner::of`] reads as the same owner.
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
