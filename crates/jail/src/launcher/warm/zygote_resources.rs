//! The resources of a zygote: its builder, its cgroup and its ids, held as long as anything that came of it
//! lives.
//!
//! ```text
//! zygote starts ──▶ zygote ends, its runs go on ──last run ends──▶ builder killed ──▶ pid namespace empty
//!                                                   ──▶ cgroup killed and removed ──▶ id lease released
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use super::builder::JailBuilder;
use crate::cgroup::Group;
use crate::launcher::ids::lease::IdLease;
use crate::launcher::setup::LauncherContext;
use crate::sys;

/// The resources of one zygote.
pub(super) struct ZygoteResources {
    /// The number of the zygote.
    pub(super) number: u64,
    builder: Rc<JailBuilder>,
    group: Option<Group>,
    ids: IdLease,
    /// The zygote's process, once it has been killed and must be reaped.
    zygote: Option<OwnedFd>,
    /// Whether the zygote is not trusted any more, so that everything that came of it must end.
    killed: bool,
    /// Whether the connection to the builder is closed and must not be polled any more.
    builder_disconnected: bool,
    builder_reaped: bool,
}

impl ZygoteResources {
    pub(super) fn new(number: u64, builder: Rc<JailBuilder>, group: Option<Group>, ids: IdLease) -> Self {
        Self {
            number,
            builder,
            group,
            ids,
            zygote: None,
            killed: false,
            builder_disconnected: false,
            builder_reaped: false,
        }
    }

    pub(super) fn builder(&self) -> &JailBuilder {
        &self.builder
    }

    /// Records that the connection to the builder is closed.
    pub(super) fn disconnect_builder(&mut self) {
        self.builder_disconnected = true;
    }

    /// Returns the connection to the builder, to be polled while it is open.
    pub(super) fn watched(&self) -> Option<BorrowedFd<'_>> {
        (!self.builder_disconnected).then(|| self.builder.watched())
    }

    /// Records that the zygote was killed; `process` must be reaped.
    pub(super) fn zygote_ended(&mut self, process: OwnedFd) {
        self.zygote = Some(process);
    }

    /// Kills everything that came of the zygote.
    pub(super) fn kill_all(&mut self) {
        self.killed = true;
        self.builder.kill();
    }

    /// Returns whether a process remains to be reaped, or the resources can be released.
    pub(super) fn needs_sweep(&self) -> bool {
        self.zygote.is_some() || self.killed || self.is_builder_unused()
    }

    /// Returns whether the zygote and its children, runs and namespace sets are all gone, so that none needs
    /// the builder.
    fn is_builder_unused(&self) -> bool {
        Rc::strong_count(&self.builder) == 1
    }

    /// Returns whether a process is the builder, which is reaped here.
    pub(super) fn owns_pid(&self, pid: i32) -> bool {
        self.builder.pid() == pid
    }

    /// Releases the resources as far as possible without blocking. Returns itself while something is left.
    pub(super) fn try_release(mut self, context: &LauncherContext) -> Option<Self> {
        if self.zygote.as_ref().is_some_and(|zygote| sys::is_readable(zygote.as_fd())) {
            let _reaped = self.zygote.take().map(|zygote| sys::wait_pidfd(zygote.as_fd()));
        }
        if !self.is_builder_unused() && !self.killed {
            return Some(self);
        }
        self.builder.kill();
        self.builder_reaped = self.builder_reaped || self.builder.reap();
        if !self.builder_reaped || self.zygote.is_some() {
            return Some(self);
        }
        // No process should be left in the cgroup. One that escaped the pid namespace is killed here.
        match self.group.take().map(Group::kill_and_remove) {
            Some(Err(group)) => {
                self.group = Some(group);
                Some(self)
            }
            Some(Ok(())) | None => {
                context.ids.release(self.ids);
                None
            }
        }
    }
}
