//! Having a group stand still, and what only living jails need of theirs.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::parse::Version;
use super::place::Place;
use super::{Controller, Error, Group, Hierarchy, owner, v2};

/// Where groups can be made to stand still, where that is none of the places that limit.
#[derive(Debug, Default)]
pub(super) struct Freezer {
    pub(super) place: Option<Arc<Place>>,
    /// Why nothing can be.
    pub(super) obstacle: Option<String>,
    /// Folders of dead launchers there.
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
    /// Why no group can be made to stand still, where none can.
    pub fn no_freezer(&self) -> Option<String> {
        self.freezer.obstacle.clone()
    }

    /// A group for a jail that stays: it can be made to stand still, and a process in it that runs out of memory takes
    /// nobody with it. `None` where this host has no groups at all.
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
    /// Every place in which it has a folder.
    pub(super) fn everywhere(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().chain(self.freezer.as_deref())
    }

    fn let_others_live(&self) -> Result<(), Error> {
        match self.with(Controller::Memory) {
            Some(place) if place.version == Version::V2 => v2::let_others_live(place.slot(self)),
            _ => Ok(()),
        }
    }

    /// Tells all its processes to stand still, or to go on. They do so in their own time: see [`Group::is_frozen`].
    pub fn set_frozen(&self, frozen: bool) -> Result<(), Error> {
        let unable = Error::Open { file: "freezer", errno: Errno::NOSYS };
        self.everywhere().find(|place| place.can_freeze()).ok_or(unable)?.freeze(self, frozen)
    }

    /// Whether all its processes stand still.
    pub fn is_frozen(&self) -> bool {
        self.everywhere().find(|place| place.can_freeze()).is_some_and(|place| place.is_frozen(self))
    }

    /// Whether a single thread is in it that is not ours. Where nothing counts them the answer is no.
    pub fn has_one_thread(&self) -> bool {
        self.processes() == Some(u64::from(self.ours) + 1)
    }

    /// Processes and threads now.
    pub fn processes(&self) -> Option<u64> {
        self.with(Controller::Pids).and_then(|place| place.slot(self).number_in("pids.current"))
    }
}
