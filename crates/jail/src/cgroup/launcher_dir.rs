//! This launcher's directory in one hierarchy. It contains the launcher's groups, and is removed with the
//! launcher.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, mkdirat};
use rustix::io::Errno;

use super::files::{self, GroupDir};
use super::owner::{self, LauncherIdentity};
use super::parse::CgroupVersion;
use super::{Controller, Error, Group, GroupLimits, v1, v2};

/// Maximum number of hierarchies per process; a launcher has one, a test program a few.
const MAX_HIERARCHIES: u32 = 64;

/// The kernel charges memory in per-CPU batches, so a group at its limit may appear to have this much left.
const CHARGE_BATCH_BYTES: u64 = 4 << 20;

#[derive(Debug)]
pub(super) struct LauncherDir {
    pub(super) version: CgroupVersion,
    pub(super) controllers: Vec<Controller>,
    /// v1 only: this hierarchy counts CPU time.
    pub(super) counts_cpu: bool,
    /// v1 only: groups in this hierarchy can be frozen. On v2 every group can.
    pub(super) is_freezer: bool,
    /// v2 only: the child of `base` into which the processes of `base` were moved.
    pub(super) moved_into: Option<String>,
    pub(super) parent: OwnedFd,
    pub(super) fd: OwnedFd,
    pub(super) name: String,
    creator_pid: u32,
    /// v1 only: reports when all groups together run out of memory, and how often they did.
    total_oom_eventfd: OnceLock<OwnedFd>,
    total_ooms: AtomicU64,
}

impl LauncherDir {
    /// Creates the directory in `base` and locks it, so that no other launcher considers it abandoned.
    pub(super) fn create(
        base: OwnedFd,
        owner: LauncherIdentity,
        version: CgroupVersion,
    ) -> rustix::io::Result<LauncherDir> {
        let name = create_dir(&base, owner)?;
        let fd = files::open_dir(base.as_fd(), &name)?;
        // Without the lock, the name alone identifies the owner.
        owner::try_lock(fd.as_fd());
        Ok(LauncherDir {
            version,
            controllers: Vec::new(),
            counts_cpu: false,
            is_freezer: false,
            moved_into: None,
            parent: base,
            fd,
            name,
            creator_pid: std::process::id(),
            total_oom_eventfd: OnceLock::new(),
            total_ooms: AtomicU64::new(0),
        })
    }

    pub(super) fn group_dir<'a>(&'a self, group: &'a Group) -> GroupDir<'a> {
        GroupDir { parent: self.fd.as_fd(), number: &group.number, open_files: &group.open_files }
    }

    /// Reads a value of a group with the function for this version.
    fn read_by_version<T>(
        &self,
        group: &Group,
        on_v1: fn(GroupDir<'_>) -> T,
        on_v2: fn(GroupDir<'_>) -> T,
    ) -> T {
        match self.version {
            CgroupVersion::V1 => on_v1(self.group_dir(group)),
            CgroupVersion::V2 => on_v2(self.group_dir(group)),
        }
    }

    pub(super) fn has(&self, controller: Controller) -> bool {
        self.controllers.contains(&controller)
    }

    /// Returns whether this process created the directory: a child that unwinds after a `clone` must not
    /// remove its parent's.
    pub(super) fn was_created_here(&self) -> bool {
        self.creator_pid == std::process::id()
    }

    pub(super) fn apply_defaults(&self, group: &Group) -> Result<(), Error> {
        let apply = match self.version {
            CgroupVersion::V1 => v1::apply_defaults,
            CgroupVersion::V2 => v2::apply_defaults,
        };
        self.controllers.iter().try_for_each(|controller| apply(self.group_dir(group), *controller))
    }

    pub(super) fn set_limits(&self, group: &Group, limits: &GroupLimits) -> Result<(), Error> {
        let limit = match self.version {
            CgroupVersion::V1 => v1::set_limit,
            CgroupVersion::V2 => v2::set_limit,
        };
        self.controllers.iter().try_for_each(|controller| limit(self.group_dir(group), *controller, limits))
    }

    fn memory_limit_file(&self) -> &'static str {
        match self.version {
            CgroupVersion::V1 => v1::limit_file(Controller::Memory),
            CgroupVersion::V2 => v2::MEMORY_LIMIT,
        }
    }

    /// Limits the memory of all groups in this directory together.
    pub(super) fn set_total_memory(&self, memory_bytes: u64) -> rustix::io::Result<()> {
        files::write(self.fd.as_fd(), self.memory_limit_file(), &memory_bytes.to_string())
    }

    /// Returns the memory limit of the parent group, if any.
    pub(super) fn parent_memory_limit(&self) -> Option<u64> {
        files::read(self.parent.as_fd(), self.memory_limit_file()).ok()?.trim().parse().ok()
    }

    /// Returns the memory used by all groups in this directory together.
    pub(super) fn total_memory_in_use(&self) -> Option<u64> {
        let file = memory_usage_file(self.version);
        files::read(self.fd.as_fd(), file).ok()?.trim().parse().ok()
    }

    /// Registers for notifications that all groups together ran out of memory. v2 counts that in the group
    /// itself.
    pub(super) fn watch_total_ooms(&self) {
        if self.version == CgroupVersion::V1 && self.total_oom_eventfd.get().is_none() {
            let open_files = files::OpenFiles::default();
            let group = GroupDir { parent: self.fd.as_fd(), number: ".", open_files: &open_files };
            // If the kernel does not support this, the group's own count must suffice.
            if let Ok(Some(event)) = v1::oom_event(group) {
                let _first = self.total_oom_eventfd.set(event);
            }
        }
    }

    /// Returns how often all groups together ran out of memory, if the kernel reports it.
    pub(super) fn total_ooms(&self) -> u64 {
        let new = self.total_oom_eventfd.get().map_or(0, files::drain_event);
        self.total_ooms.fetch_add(new, Ordering::Relaxed) + new
    }

    /// Returns how often a group ran out of its own memory. On v1 this is negative if all groups together ran
    /// out of memory before the group was created; only differences are meaningful.
    pub(super) fn group_ooms(&self, group: &Group) -> i64 {
        match self.version {
            CgroupVersion::V1 => match group.drain_oom_event() {
                // Every group is notified of events in its parent, and the parent is notified first.
                Some(announced) => announced as i64 - self.total_ooms() as i64,
                None => self.reached_memory_limit(group).into(),
            },
            CgroupVersion::V2 => self.group_dir(group).value_in("memory.events", "oom").unwrap_or(0) as i64,
        }
    }

    fn reached_memory_limit(&self, group: &Group) -> bool {
        let limit = group.cache.limits.get().map(|limits| limits.memory_bytes);
        limit.zip(self.peak_memory(group)).is_some_and(|(limit, peak)| peak + CHARGE_BATCH_BYTES >= limit)
    }

    pub(super) fn oom_kills(&self, group: &Group) -> Option<u64> {
        self.read_by_version(group, v1::oom_kills, v2::oom_kills)
    }

    pub(super) fn cpu_time(&self, group: &Group) -> Option<Duration> {
        match self.version {
            CgroupVersion::V1 => self.counts_cpu.then(|| v1::cpu_time(self.group_dir(group)))?,
            CgroupVersion::V2 => v2::cpu_time(self.group_dir(group)),
        }
    }

    pub(super) fn peak_memory(&self, group: &Group) -> Option<u64> {
        self.read_by_version(group, v1::peak_memory, v2::peak_memory)
    }

    pub(super) fn can_freeze(&self) -> bool {
        self.version == CgroupVersion::V2 || self.is_freezer
    }

    pub(super) fn freeze(&self, group: &Group, frozen: bool) -> Result<(), Error> {
        match self.version {
            CgroupVersion::V1 => v1::freeze(self.group_dir(group), frozen),
            CgroupVersion::V2 => v2::freeze(self.group_dir(group), frozen),
        }
    }

    pub(super) fn is_frozen(&self, group: &Group) -> bool {
        self.read_by_version(group, v1::is_frozen, v2::is_frozen)
    }

    /// Returns whether the group has no processes. An unreadable group counts as populated, unless it no
    /// longer exists.
    pub(super) fn is_empty(&self, group: &Group) -> bool {
        match files::read(self.fd.as_fd(), &format!("{}/{}", group.number, v2::MEMBERS)) {
            Ok(members) => members.is_empty(),
            Err(errno) => errno == Errno::NOENT,
        }
    }
}

/// Returns the name of the file with the memory in use.
pub(super) fn memory_usage_file(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::V1 => "memory.usage_in_bytes",
        CgroupVersion::V2 => "memory.current",
    }
}

/// Creates the directory. A second hierarchy in the same process gets a numbered name, which
/// [`LauncherIdentity::parse`] parses as the same owner.
fn create_dir(base: &OwnedFd, owner: LauncherIdentity) -> rustix::io::Result<String> {
    for copy in 0..MAX_HIERARCHIES {
        let name = if copy == 0 { owner.to_string() } else { format!("{owner}.{copy}") };
        match mkdirat(base, &name, Mode::from(0o755)) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EXIST)
}

impl Drop for LauncherDir {
    fn drop(&mut self) {
        if !self.was_created_here() {
            return;
        }
        files::remove_folder(self.parent.as_fd(), &self.name);
        if let Some(child_group) = &self.moved_into {
            v2::undo_move(self.parent.as_fd(), child_group);
        }
    }
}
