//! A zygote's lineage: its builder, its control group and its ids, for as long as anything that came of it lives.
//!
//! ```text
//! zygote starts ──▶ zygote ends, its runs go on ──last run is over──▶ builder killed ──▶ namespace empty ──▶ group killed
//!                                                                              and removed ──▶ ids given back
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use super::builder::JailBuilder;
use super::home::Home;
use super::ids::Taken;
use super::start;
use crate::cgroup::Group;
use crate::sys;

pub(super) struct Lineage {
    /// Number of the zygote.
    pub(super) number: u64,
    builder: Rc<JailBuilder>,
    group: Option<Group>,
    taken: Taken,
    /// The zygote's process, when it has been ended and is to be waited for.
    zygote: Option<OwnedFd>,
    /// Whether the zygote was caught at something: nothing that came of it is to go on.
    condemned: bool,
    /// Whether the builder's line is at its end, so that there is nothing to hear from it any more.
    pub(super) builder_is_lost: bool,
    builder_is_gone: bool,
}

impl Lineage {
    pub(super) fn new(number: u64, builder: Rc<JailBuilder>, group: Option<Group>, taken: Taken) -> Self {
        Self {
            number,
            builder,
            group,
            taken,
            zygote: None,
            condemned: false,
            builder_is_lost: false,
            builder_is_gone: false,
        }
    }

    pub(super) fn builder(&self) -> &JailBuilder {
        &self.builder
    }

    /// The zygote has been killed.
    pub(super) fn zygote_ended(&mut self, process: OwnedFd) {
        self.zygote = Some(process);
    }

    /// Ends everything that came of the zygote, now.
    pub(super) fn condemn(&mut self) {
        self.condemned = true;
        self.builder.kill();
    }

    /// Whether there is something to wait for.
    pub(super) fn is_ending(&self) -> bool {
        self.zygote.is_some() || self.condemned || self.is_unneeded()
    }

    /// Whether neither the zygote nor a child, a run or a plot of its needs the builder any more.
    fn is_unneeded(&self) -> bool {
        Rc::strong_count(&self.builder) == 1
    }

    /// Whether a process is one that will be waited for here.
    pub(super) fn knows(&self, pid: i32) -> bool {
        self.builder.pid() == pid
    }

    /// Goes on with the end as far as that is possible now. Gives itself back while something is left.
    pub(super) fn sweep(mut self, home: &Home) -> Option<Self> {
        if self.zygote.as_ref().is_some_and(|zygote| start::is_readable(zygote.as_fd())) {
            let _reaped = self.zygote.take().map(|zygote| sys::wait_for(zygote.as_fd()));
        }
        if !self.is_unneeded() && !self.condemned {
            return Some(self);
        }
        self.builder.kill();
        self.builder_is_gone = self.builder_is_gone || self.builder.reap();
        if !self.builder_is_gone || self.zygote.is_some() {
            return Some(self);
        }
        // Whoever is left in the group escaped the namespace, which nobody can; it dies all the same.
        match self.group.take().map(Group::kill_and_remove) {
            Some(Err(group)) => {
                self.group = Some(group);
                Some(self)
            }
            Some(Ok(())) | None => {
                home.ids.give_back(self.taken);
                None
            }
        }
    }
}
