//! Freezing groups, and creating groups for the jails of sandboxes.
//!
//! v2 can freeze every group. v1 freezes in a hierarchy of its own, which only jails of sandboxes join: one
//! more hierarchy costs every run, and one-shot runs are never paused. On v1 a killed process that is frozen
//! dies only when it is thawed: killing a sandbox thaws it, and a launcher thaws what a dead launcher left.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::launcher_dir::LauncherDir;
use super::owner::AbandonedDir;
use super::parse::CgroupVersion;
use super::{Controller, Error, Group, Hierarchy, owner, v2};

/// The separate hierarchy in which groups can be frozen, if none of those with limits can freeze.
#[derive(Debug, Default)]
pub(super) struct Freezer {
    pub(super) launcher_dir: Option<Arc<LauncherDir>>,
    /// The reason why groups cannot be frozen.
    pub(super) obstacle: Option<String>,
    /// Directories of dead launchers there.
    pub(super) abandoned: Vec<AbandonedDir>,
}

impl Freezer {
    /// Kills and removes what dead launchers left.
    pub(super) fn sweep(&mut self) {
        if let Some(launcher_dir) = &self.launcher_dir {
            self.abandoned.retain(|dir| !owner::remove_abandoned(launcher_dir.parent.as_fd(), dir));
        }
    }
}

impl Hierarchy {
    /// Returns the reason why no group can be frozen, or `None` if groups can.
    pub fn freezer_obstacle(&self) -> Option<String> {
        self.freezer.obstacle.clone()
    }

    /// Creates a group for the jail of a sandbox: it can be frozen, and a process in it that runs out of
    /// memory is killed alone. `None` if this host has no cgroups at all.
    pub fn create_for_sandbox(&self) -> Result<Option<Group>, Error> {
        if self.launcher_dirs.is_empty() && self.freezer.launcher_dir.is_none() {
            return Ok(None);
        }
        let mut group = self.make(1)?;
        group.disable_group_kill()?;
        if let Some(dir) = &self.freezer.launcher_dir {
            group.freezer_dir = Some(Arc::clone(dir));
            group.open_in(dir)?;
        }
        Ok(Some(group))
    }
}

impl Group {
    /// Returns every hierarchy in which the group has a directory.
    pub(super) fn dirs(&self) -> impl Iterator<Item = &LauncherDir> {
        self.launcher_dirs.iter().chain(self.freezer_dir.as_deref())
    }

    fn disable_group_kill(&self) -> Result<(), Error> {
        match self.dir_with(Controller::Memory) {
            Some(dir) if dir.version == CgroupVersion::V2 => v2::disable_group_kill(dir.group_dir(self)),
            _ => Ok(()),
        }
    }

    /// Requests that all its processes freeze or thaw. This takes time; see [`Group::is_frozen`].
    pub fn set_frozen(&self, frozen: bool) -> Result<(), Error> {
        let unable = Error::Open { file: "freezer", errno: Errno::NOSYS };
        self.dirs().find(|dir| dir.can_freeze()).ok_or(unable)?.freeze(self, frozen)
    }

    /// Returns whether all its processes are frozen.
    pub fn is_frozen(&self) -> bool {
        self.dirs().find(|dir| dir.can_freeze()).is_some_and(|dir| dir.is_frozen(self))
    }

    /// Returns whether it contains exactly one thread that is not ours; `false` if threads are not counted.
    pub fn has_one_thread(&self) -> bool {
        self.process_count() == Some(u64::from(self.own_processes) + 1)
    }

    /// Returns the current number of processes and threads.
    pub fn process_count(&self) -> Option<u64> {
        self.dir_with(Controller::Pids).and_then(|dir| dir.group_dir(self).number_in("pids.current"))
    }
}
