//! Making a plot: the namespaces that one jail after the other of a zygote stands in. Nobody lives in it but for the moment of
//! its making.

use std::os::fd::OwnedFd;

use super::{Told, await_byte, init, mounts, rights, tell};
use crate::bare::{self, errno};
use crate::step::{Step, StepFailed, step};
use crate::sys;

/// What the one who makes a plot starts with.
pub(crate) struct Ploughing<'a> {
    /// Where the root tree stands.
    pub(crate) root: &'a str,
    /// Readable once the id map stands, and at its end when the launcher has no more use for this process.
    pub(crate) go: OwnedFd,
    /// Where it is told how that went.
    pub(crate) report: OwnedFd,
    /// Whether PID 1 of the jails has a user id other than the program's.
    pub(crate) own_init_uid: bool,
}

/// Runs as the one who makes a plot, until the launcher has seen it or is gone.
pub(crate) fn enter_plot(ploughing: &Ploughing<'_>) -> ! {
    let told = plough(ploughing).map_or_else(Told::Failed, |()| Told::Ready);
    tell(&ploughing.report, &told);
    // Nothing more comes but the end.
    let _end = await_byte(&ploughing.go);
    sys::exit_now(0)
}

fn plough(ploughing: &Ploughing<'_>) -> Result<(), StepFailed> {
    step(Step::IdMap, "", || {
        sys::die_with_parent()?;
        sys::occupy_standard_numbers()?;
        init::close_all_but(4, [&ploughing.go, &ploughing.report].into_iter())?;
        await_byte(&ploughing.go)
    })?;
    step(Step::Network, "", sys::loopback_up)?;
    step(Step::Ids, "", || {
        let uid = rights::init_uid(ploughing.own_init_uid);
        rights::become_user(uid, uid)?;
        // Lost and reset with the change of ids; the launcher opens the namespaces by way of this process.
        sys::die_with_parent()?;
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)
    })?;
    step(Step::Root, "", || mounts::take_root(ploughing.root))?;
    // The kernel lets a jail mount its own only where another one is in full view. This one shows no process: the
    // namespace that it is of is gone in a moment, and the jail's own lies over it.
    step(Step::Proc, "", || bare::mounts::proc().map_err(errno))?;
    step(Step::Pivot, "", mounts::pivot)
}
