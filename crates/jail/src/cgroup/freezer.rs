//! Freezing groups, and creating groups for the jails of sandboxes.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::parse::Version;
use super::place::Place;
use super::{Controller, Error, Group, Hierarchy, owner, v2};

/// The separate hierarchy in which groups can be frozen, if none of those with limits can freeze.
#[derive(Debug, Default)]
pub(super) struct Freezer {
    pub(super) place: Option<Arc<Place>>,
    /// The reason why groups cannot be frozen.
    pub(super) obstacle: Option<String>,
    /// Directories of dead launchers there.
    pub(super) abandoned: Vec<String>,
}

impl Freezer {
    /// Kills and removes what dead launchers left.
    pub(super) fn sweep(&mut self) {
        if let Some(place) = &self.place {
            self.abandoned.retain(|name| !owner::remove_abandoned(place.base.as_fd(), name));
        }
    }
}

impl Hierarchy {
    /// Returns the reason why no group can be frozen, or `None` if groups can.
    pub fn no_freezer(&self) -> Option<String> {
        self.freezer.obstacle.clone()
    }

    /// Creates a group for the jail of a sandbox: it can be frozen, and a process in it that runs out of
    /// memory is killed alone. `None` if this host has no cgroups at all.
    pub fn create_living(&self) -> Result<Option<Group>, Error> {
        if self.places.is_empty() && self.freezer.place.is_none() {
            return Ok(None);
        }
        let mut group = self.make(1)?;
        group.let_others_live()?;
        if let Some(place) = &self.freezer.place {
            group.freezer = Some(Arc::clone(place));
            group.open_in(place)?;
        }
        Ok(Some(group))
    }
}

impl Group {
    /// Returns every hierarchy in which the group has a directory.
    pub(super) fn everywhere(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().chain(self.freezer.as_deref())
    }

    fn let_others_live(&self) -> Result<(), Error> {
        match self.with(Controller::Memory) {
            Some(place) if place.version == Version::V2 => v2::let_others_live(place.slot(self)),
            _ => Ok(()),
        }
    }

    /// Requests that all its processes freeze or thaw. This takes time; see [`Group::is_frozen`].
    pub fn set_frozen(&self, frozen: bool) -> Result<(), Error> {
        let unable = Error::Open { file: "freezer", errno: Errno::NOSYS };
        self.everywhere().find(|place| place.can_freeze()).ok_or(unable)?.freeze(self, frozen)
    }

    /// Returns whether all its processes are frozen.
    pub fn is_frozen(&self) -> bool {
        self.everywhere().find(|place| place.can_freeze()).is_some_and(|place| place.is_frozen(self))
    }

    /// Returns whether it contains exactly one thread that is not ours; `false` if threads are not counted.
    pub fn has_one_thread(&self) -> bool {
        self.processes() == Some(u64::from(self.ours) + 1)
    }

    /// Returns the current number of processes and threads.
    pub fn processes(&self) -> Option<u64> {
        self.with(Controller::Pids).and_then(|place| place.slot(self).number_in("pids.current"))
    }
}
