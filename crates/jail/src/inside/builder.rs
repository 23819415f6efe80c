//! The builder of a zygote's jails: a process on the launcher's side, and not in its loop.
//!
//! It is PID 1 of the pid namespace in which the zygote and all its jails live, so that one kill ends them all. It makes
//! each jail whole before the zygote is asked for a child, and looks at each child from outside before anything may run in
//! it. It believes nobody but the launcher: the zygote has no line to it.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use rustix::io::Errno;
use rustix::process::DumpableBehavior;
use serde::{Deserialize, Serialize};

use super::inspect::{self, Expected};
use super::plot::{self, NewPlot};
use super::{init, rights};
use crate::bare::errno;
use crate::bare::jail::{self, JailParts};
use crate::bare::message::{BirthStep, Guard};
use crate::bare::pid1::{Opened, Pid1};
use crate::bare::seccomp::Program;
use crate::seccomp::Filter;
use crate::spec::INNER_UID;
use crate::step::{Step, StepFailed};
use crate::{sys, wire};

/// What a builder starts with, the same for all its jails.
pub(crate) struct Builder<'a> {
    /// To the launcher.
    pub(crate) line: OwnedFd,
    /// `/proc` of the host.
    pub(crate) proc: &'a OwnedFd,
    /// Where the root tree stands.
    pub(crate) root: &'a str,
    /// The zygote's user, who owns the user namespaces of its plots.
    pub(crate) owner: u32,
    pub(crate) guard: Guard,
    /// The filter of PID 1.
    pub(crate) filter: &'a Filter,
    /// Paths that stay visible below folders that are new in every jail.
    pub(crate) kept: &'a [u8],
}

/// Launcher to builder.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum BuilderOrder {
    /// Build a jail. Descriptors: the leash of PID 1; the user, network and mount namespace of a plot, if there is one;
    /// and files to which a process writes `0` to join the jail's control groups.
    Build(JailPlan),
    /// Look at a child that says it is confined. Descriptors: the jail's `/proc`, its namespaces, the child, and files of
    /// control groups that a process of another user cannot join by itself.
    Inspect(Box<Expected>),
}

/// One jail to build.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JailPlan {
    /// Number of the child that it is for.
    pub(crate) number: u64,
    /// The ids of a plot that is to be made for it; otherwise one comes along.
    pub(crate) new_plot: Option<NewPlot>,
    /// Whether PID 1 has a user id other than the program's.
    pub(crate) own_init_uid: bool,
    pub(crate) disk_options: String,
    /// For tests: layers to leave out, and a step to fail.
    pub(crate) without: u32,
    pub(crate) fail: u32,
}

/// Builder to launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum BuilderNotice {
    /// A jail stands. Descriptors: PID 1; the mount, ipc, uts, cgroup and pid namespaces; the workspace; the jail's `/proc`;
    /// the landlock rules, if there are any; and of a new plot its user, network and mount namespace and its count of
    /// sockets.
    Built { number: u64, has_rules: bool },
    /// A jail could not be built.
    NotBuilt { number: u64, failure: StepFailed },
    /// What a child is, seen from outside: nothing, or what is not as it should be.
    Inspected { number: u64, mismatch: Option<String> },
}

/// Runs as a builder until the launcher lets go of it; never comes back.
pub(crate) fn enter_builder(builder: &Builder<'_>) -> ! {
    if settle(builder).is_ok() {
        serve(builder);
    }
    sys::exit_now(0)
}

fn settle(builder: &Builder<'_>) -> Result<(), Errno> {
    sys::die_with_parent()?;
    sys::occupy_standard_numbers()?;
    init::close_all_but(4, [&builder.line, builder.proc].into_iter())?;
    // Its children leave nothing to wait for; nor do orphans of the zygote's namespace.
    sys::ignore_children();
    // PID 1 of each jail shares this memory, and nobody in a jail has any business with that.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

fn serve(builder: &Builder<'_>) {
    let mut buffer = Vec::new();
    loop {
        match wire::receive::<BuilderOrder>(builder.line.as_fd(), &mut buffer) {
            Ok(Some((order, fds))) => handle(builder, order, fds),
            Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return,
        }
    }
}

fn handle(builder: &Builder<'_>, order: BuilderOrder, fds: Vec<OwnedFd>) {
    let (notice, fds) = match order {
        BuilderOrder::Build(plan) => match build(builder, &plan, fds) {
            Ok((has_rules, fds)) => (BuilderNotice::Built { number: plan.number, has_rules }, fds),
            Err(failure) => (BuilderNotice::NotBuilt { number: plan.number, failure }, Vec::new()),
        },
        BuilderOrder::Inspect(expected) => {
            let mismatch = inspect::inspect(builder.proc, &expected, &fds).err();
            (BuilderNotice::Inspected { number: expected.number, mismatch }, Vec::new())
        }
    };
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    // A launcher that is gone is noticed by the next receive.
    let _sent = wire::send_patiently(builder.line.as_fd(), &notice, &fds);
}

fn build(
    builder: &Builder<'_>,
    plan: &JailPlan,
    fds: Vec<OwnedFd>,
) -> Result<(bool, Vec<OwnedFd>), StepFailed> {
    let lost = || StepFailed::new(Step::Order, "", Errno::BADMSG);
    let mut fds = fds.into_iter();
    let leash = fds.next().ok_or_else(lost)?;
    let (plot, is_new): (Vec<OwnedFd>, bool) = match &plan.new_plot {
        Some(new) => (plot::make(builder, new)?, true),
        None => (fds.by_ref().take(3).collect(), false),
    };
    let [user, network, mounts, ..] = plot.as_slice() else { return Err(lost()) };
    let groups: Vec<i32> = fds.as_slice().iter().map(AsRawFd::as_raw_fd).collect();
    let disk_options = CString::new(plan.disk_options.as_str()).map_err(|_| lost())?;
    let mut parts = JailParts {
        user: user.as_raw_fd(),
        network: network.as_raw_fd(),
        mounts: mounts.as_raw_fd(),
        groups: &groups,
        proc: builder.proc.as_raw_fd(),
        pid1: Pid1 {
            uid: INNER_UID,
            init_uid: rights::init_uid(plan.own_init_uid),
            disk_options: &disk_options,
            guard: &builder.guard,
            filter: Program {
                len: builder.filter.len() as u16,
                instructions: builder.filter.bytes().as_ptr() as usize,
            },
            kept: builder.kept,
            leash: leash.as_raw_fd(),
            without: plan.without,
            fail: plan.fail,
            opened: Opened::NONE,
            failed: None,
            stage: AtomicU32::new(0),
        },
        init: -1,
        cgroup_namespace: -1,
        failed: None,
    };
    let built = jail::build(&mut parts);
    let jail = own(&parts);
    let Opened { rules, .. } = parts.pid1.opened;
    built.map_err(|(step, why)| failure_of(step, errno(why)))?;
    Ok((rules >= 0, jail.into_iter().chain(plot.into_iter().filter(|_| is_new)).collect()))
}

/// Takes over what was opened for a jail, so that it is closed whatever happens.
fn own(parts: &JailParts<'_>) -> Vec<OwnedFd> {
    let Opened { pid_namespace, mount_namespace, ipc_namespace, uts_namespace, disk, proc, rules } =
        parts.pid1.opened;
    let opened = [
        parts.init,
        mount_namespace,
        ipc_namespace,
        uts_namespace,
        parts.cgroup_namespace,
        pid_namespace,
        disk,
        proc,
        rules,
    ];
    // SAFETY: the kernel made each of these for this jail, in the table of this process, and nobody else owns it.
    opened.into_iter().filter(|fd| *fd >= 0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect()
}

/// A step of a jail's set-up in the words of all steps.
pub(crate) fn failure_of(step: BirthStep, errno: Errno) -> StepFailed {
    StepFailed::new(step_of(step), "", errno)
}

/// A child's step, or its PID 1's, in the words of all steps.
pub(crate) fn step_of(step: BirthStep) -> Step {
    match step {
        BirthStep::Namespaces => Step::Namespaces,
        BirthStep::JoinCgroup => Step::JoinCgroup,
        BirthStep::CgroupNamespace => Step::CgroupNamespace,
        BirthStep::Rlimits => Step::Rlimits,
        BirthStep::Ids => Step::Ids,
        BirthStep::Capabilities => Step::Capabilities,
        BirthStep::NoNewPrivs => Step::NoNewPrivs,
        BirthStep::Landlock => Step::Landlock,
        BirthStep::Seccomp => Step::Seccomp,
        BirthStep::Order => Step::Order,
        BirthStep::Files => Step::Files,
        BirthStep::Workdir => Step::Workdir,
        BirthStep::Stdio => Step::Stdio,
        BirthStep::Hostname => Step::Hostname,
        BirthStep::Disk => Step::Disk,
        BirthStep::Proc => Step::Proc,
        BirthStep::Masks => Step::Masks,
        BirthStep::Terminals => Step::Terminals,
        BirthStep::Init => Step::Init,
        BirthStep::Fork => Step::Fork,
    }
}
