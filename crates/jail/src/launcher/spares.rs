//! What can be made before it is needed: network namespaces with loopback up, and control groups. Each is used once.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::home::Home;
use crate::cgroup::Group;
use crate::step::{Step, StepFailed, step};
use crate::sys;

/// As many as a short burst takes; the launcher makes more whenever it has nothing else to do.
const KEPT: usize = 4;

#[derive(Default)]
pub(super) struct Spares {
    networks: Vec<OwnedFd>,
    groups: Vec<Group>,
    /// How many are worth having: none for a launcher that runs one thing and ends.
    kept: usize,
    runs: usize,
}

impl Spares {
    pub(super) fn wanting(&self, home: &Home) -> bool {
        self.wants_network(home) || (home.has_groups() && self.groups.len() < self.kept)
    }

    fn wants_network(&self, home: &Home) -> bool {
        home.can_change_network && self.networks.len() < self.kept
    }

    /// Notes that a run took what it needed.
    pub(super) fn note_run(&mut self) {
        self.runs += 1;
        self.kept = (self.runs - 1).min(KEPT);
    }

    /// Makes one of what is missing. A failure shows, with its name, when one is needed and cannot be made then
    /// either; until the next run nothing more is tried.
    pub(super) fn refill(&mut self, home: &Home) {
        let made = if self.wants_network(home) {
            make_network(home).map(|network| self.networks.push(network))
        } else {
            make_group(home).map(|group| self.groups.extend(group))
        };
        if made.is_err() {
            self.kept = 0;
        }
    }

    pub(super) fn network(&mut self, home: &Home) -> Result<OwnedFd, StepFailed> {
        self.networks.pop().map_or_else(|| make_network(home), Ok)
    }

    /// A group, where the host has any controller.
    pub(super) fn group(&mut self, home: &Home) -> Result<Option<Group>, StepFailed> {
        match self.groups.pop() {
            Some(group) => Ok(Some(group)),
            None => make_group(home),
        }
    }
}

fn make_network(home: &Home) -> Result<OwnedFd, StepFailed> {
    step(Step::Network, "", || {
        sys::unshare(libc::CLONE_NEWNET)?;
        let made = sys::loopback_up().and_then(|()| {
            rustix::fs::openat(&home.proc, "self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        });
        sys::setns(home.network.as_fd(), libc::CLONE_NEWNET)?;
        made
    })
}

fn make_group(home: &Home) -> Result<Option<Group>, StepFailed> {
    if !home.has_groups() {
        return Ok(None);
    }
    step(Step::Cgroup, "", || home.groups.create().map(Some).map_err(|error| error_errno(&error)))
}

pub(super) fn error_errno(error: &crate::cgroup::Error) -> Errno {
    match error {
        crate::cgroup::Error::Make { errno }
        | crate::cgroup::Error::Open { errno, .. }
        | crate::cgroup::Error::Write { errno, .. } => *errno,
    }
}
