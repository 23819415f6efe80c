//! The builder of a zygote's jails: a trusted process outside the launcher's event loop.
//!
//! It is PID 1 of the pid namespace that contains the zygote and all its jails, so killing it ends them all.
//! It builds each jail completely before the zygote is asked to fork a child, and inspects each child from
//! outside before any tenant code runs in it. It takes requests only from the launcher; the zygote has no
//! connection to it.

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

/// Input of a builder, the same for all its jails.
pub(crate) struct Builder<'a> {
    /// Socket to the launcher.
    pub(crate) line: OwnedFd,
    /// `/proc` of the host.
    pub(crate) proc: &'a OwnedFd,
    /// Path of the root tree.
    pub(crate) root: &'a str,
    /// User id of the zygote, which owns the user namespaces of its namespace sets.
    pub(crate) owner: u32,
    pub(crate) guard: Guard,
    /// Filter of PID 1.
    pub(crate) filter: &'a Filter,
    /// Paths that stay visible below directories that are fresh in every jail.
    pub(crate) kept: &'a [u8],
}

/// A message from launcher to builder.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum BuilderOrder {
    /// Builds a jail. Attached descriptors: the liveness pipe of PID 1; the user, network and mount namespace
    /// of a namespace set, unless a new one is to be created; and cgroup join fds, to which a process writes
    /// `0`.
    Build(JailPlan),
    /// Inspects a child that reports that it is confined. Attached descriptors: the jail's `/proc`, its
    /// namespaces, the child, and files of cgroups that a process of another user cannot join itself.
    Inspect(Box<Expected>),
}

/// A jail to build.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JailPlan {
    /// Number of the child that it is for.
    pub(crate) number: u64,
    /// Ids of a new namespace set to create for it; `None` if an existing set is attached.
    pub(crate) new_plot: Option<NewPlot>,
    /// Whether PID 1 has a user id other than the program's.
    pub(crate) own_init_uid: bool,
    pub(crate) disk_options: String,
    /// For tests: layers to leave out, and the step that fails.
    pub(crate) without: u32,
    pub(crate) fail: u32,
}

/// A message from builder to launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum BuilderNotice {
    /// A jail was built. Attached descriptors: PID 1; the mount, ipc, uts, cgroup and pid namespaces; the
    /// workspace; the jail's `/proc`; the Landlock ruleset, if any; and for a new namespace set its user,
    /// network and mount namespace and its socket statistics file.
    Built { number: u64, has_rules: bool },
    /// A jail could not be built.
    NotBuilt { number: u64, failure: StepFailed },
    /// Result of an inspection: `None`, or the mismatch.
    Inspected { number: u64, mismatch: Option<String> },
}

/// Runs as a builder until the launcher closes the socket; never returns.
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
    // The kernel reaps its children, including orphans of the zygote's namespace.
    sys::ignore_children();
    // PID 1 of each jail shares this memory, which no other process in the jail may access.
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
    // If the launcher is gone, the next receive notices.
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

/// Takes ownership of the descriptors opened for a jail, so that they are closed in any case.
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
    // SAFETY: the kernel created each of these for this jail in this process's table, and nothing else owns
    // them.
    opened.into_iter().filter(|fd| *fd >= 0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect()
}

/// Converts a failed step of a warm jail to the common error.
pub(crate) fn failure_of(step: BirthStep, errno: Errno) -> StepFailed {
    StepFailed::new(step_of(step), "", errno)
}

/// Converts a step of a zygote's child or its PID 1 to the common type.
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
