//! The builder of a zygote's jails: a trusted process outside the launcher's event loop.
//!
//! It is PID 1 of the pid namespace that contains the zygote and all its jails, so killing it ends them all.
//! It builds each jail completely before the zygote is asked to fork a child, and inspects each child from
//! outside before any tenant code runs in it. It takes requests only from the launcher; the zygote has no
//! connection to it.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use belljar_zygote::build_jail::{self, JailParts};
use belljar_zygote::install_filter::FilterProgram;
use belljar_zygote::message::{LandlockAccess, SetupStep};
use belljar_zygote::pid1::{JailFds, Pid1};
use rustix::io::Errno;
use rustix::process::DumpableBehavior;
use serde::{Deserialize, Serialize};

use super::inspect::{self, ExpectedChild};
use super::namespace_set::{self, NamespaceSetPlan};
use super::{init, privileges};
use crate::seccomp::SeccompFilter;
use crate::spec::INNER_UID;
use crate::step::{Step, StepFailed};
use crate::sys::errno;
use crate::{sys, wire};

/// Input of a builder, the same for all its jails.
pub(crate) struct BuilderSetup<'a> {
    /// Socket to the launcher.
    pub(crate) launcher_socket: OwnedFd,
    /// `/proc` of the host.
    pub(crate) proc: &'a OwnedFd,
    /// Path of the root tree.
    pub(crate) root_path: &'a str,
    /// User id of the zygote, which owns the user namespaces of its namespace sets.
    pub(crate) owner: u32,
    pub(crate) landlock: LandlockAccess,
    /// Filter of PID 1.
    pub(crate) filter: &'a SeccompFilter,
    /// Paths that stay visible below directories that are fresh in every jail.
    pub(crate) visible_paths: &'a [u8],
}

/// A message from launcher to builder.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum BuilderRequest {
    /// Builds a jail. Attached descriptors: the liveness pipe of PID 1; the user, network and mount namespace
    /// of a namespace set, unless a new one is to be created; and cgroup join fds, to which a process writes
    /// `0`.
    Build(JailPlan),
    /// Inspects a child that reports that it is confined. Attached descriptors: the jail's `/proc`, its
    /// namespaces, the child, and files of cgroups that a process of another user cannot join itself.
    Inspect(Box<ExpectedChild>),
}

/// A jail to build.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JailPlan {
    /// Number of the child that it is for.
    pub(crate) number: u64,
    /// Ids of a new namespace set to create for it; `None` if an existing set is attached.
    pub(crate) new_namespaces: Option<NamespaceSetPlan>,
    /// Whether PID 1 has a user id other than the program's.
    pub(crate) own_init_uid: bool,
    pub(crate) disk_options: String,
    /// For tests: layers to leave out, and the step that fails.
    pub(crate) without: u32,
    pub(crate) fail: u32,
}

/// A message from builder to launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum BuilderEvent {
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
pub(crate) fn run_builder(builder: &BuilderSetup<'_>) -> ! {
    if confine_builder(builder).is_ok() {
        serve(builder);
    }
    sys::exit_now(0)
}

fn confine_builder(builder: &BuilderSetup<'_>) -> Result<(), Errno> {
    sys::die_with_parent()?;
    sys::reserve_standard_fds()?;
    init::close_all_but(4, [&builder.launcher_socket, builder.proc].into_iter())?;
    // The kernel reaps its children, including orphans of the zygote's namespace.
    sys::auto_reap_children();
    // PID 1 of each jail shares this memory, which no other process in the jail may access.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

fn serve(builder: &BuilderSetup<'_>) {
    let mut buffer = Vec::new();
    loop {
        match wire::receive::<BuilderRequest>(builder.launcher_socket.as_fd(), &mut buffer) {
            Ok(Some((request, fds))) => handle(builder, request, fds),
            Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return,
        }
    }
}

fn handle(builder: &BuilderSetup<'_>, request: BuilderRequest, fds: Vec<OwnedFd>) {
    let (event, fds) = match request {
        BuilderRequest::Build(plan) => match build(builder, &plan, fds) {
            Ok((has_rules, fds)) => (BuilderEvent::Built { number: plan.number, has_rules }, fds),
            Err(failure) => (BuilderEvent::NotBuilt { number: plan.number, failure }, Vec::new()),
        },
        BuilderRequest::Inspect(expected) => {
            let mismatch = inspect::inspect(builder.proc, &expected, &fds).err();
            (BuilderEvent::Inspected { number: expected.number, mismatch }, Vec::new())
        }
    };
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    // If the launcher is gone, the next receive notices.
    let _sent = wire::send_blocking(builder.launcher_socket.as_fd(), &event, &fds);
}

fn build(
    builder: &BuilderSetup<'_>,
    plan: &JailPlan,
    fds: Vec<OwnedFd>,
) -> Result<(bool, Vec<OwnedFd>), StepFailed> {
    let lost = || StepFailed::new(Step::Task, "", Errno::BADMSG);
    let mut fds = fds.into_iter();
    let liveness_pipe = fds.next().ok_or_else(lost)?;
    let (namespaces, is_new): (Vec<OwnedFd>, bool) = match &plan.new_namespaces {
        Some(new) => (namespace_set::create(builder, new)?, true),
        None => (fds.by_ref().take(3).collect(), false),
    };
    let [user, network, mounts, ..] = namespaces.as_slice() else { return Err(lost()) };
    let groups: Vec<i32> = fds.as_slice().iter().map(AsRawFd::as_raw_fd).collect();
    let disk_options = CString::new(plan.disk_options.as_str()).map_err(|_| lost())?;
    let mut parts = JailParts {
        user: user.as_raw_fd(),
        network: network.as_raw_fd(),
        mounts: mounts.as_raw_fd(),
        cgroup_join_fds: &groups,
        proc: builder.proc.as_raw_fd(),
        pid1: Pid1 {
            uid: INNER_UID,
            init_uid: privileges::init_uid(plan.own_init_uid),
            disk_options: &disk_options,
            landlock: &builder.landlock,
            filter: FilterProgram {
                len: builder.filter.len() as u16,
                instructions: builder.filter.bytes().as_ptr() as usize,
            },
            visible_paths: builder.visible_paths,
            liveness_pipe: liveness_pipe.as_raw_fd(),
            layers_left_out: plan.without,
            failing_step: plan.fail,
            opened: JailFds::NONE,
            failed: None,
            stage: AtomicU32::new(0),
        },
        pid1_pidfd: -1,
        cgroup_namespace: -1,
        failed: None,
    };
    let built = build_jail::build(&mut parts);
    let jail = take_fds(&parts);
    let JailFds { landlock_ruleset: rules, .. } = parts.pid1.opened;
    built.map_err(|(step, why)| setup_failure(step, errno(why)))?;
    Ok((rules >= 0, jail.into_iter().chain(namespaces.into_iter().filter(|_| is_new)).collect()))
}

/// Takes ownership of the descriptors opened for a jail, so that they are closed in any case.
fn take_fds(parts: &JailParts<'_>) -> Vec<OwnedFd> {
    let JailFds {
        pid_namespace,
        mount_namespace,
        ipc_namespace,
        uts_namespace,
        disk,
        procfs: proc,
        landlock_ruleset: rules,
    } = parts.pid1.opened;
    let opened = [
        parts.pid1_pidfd,
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
pub(crate) fn setup_failure(step: SetupStep, errno: Errno) -> StepFailed {
    StepFailed::new(common_step(step), "", errno)
}

/// Converts a step of a zygote's child or its PID 1 to the common type.
pub(crate) fn common_step(step: SetupStep) -> Step {
    match step {
        SetupStep::Namespaces => Step::Namespaces,
        SetupStep::JoinCgroup => Step::JoinCgroup,
        SetupStep::CgroupNamespace => Step::CgroupNamespace,
        SetupStep::Rlimits => Step::Rlimits,
        SetupStep::Ids => Step::Ids,
        SetupStep::Capabilities => Step::Capabilities,
        SetupStep::NoNewPrivs => Step::NoNewPrivs,
        SetupStep::Landlock => Step::Landlock,
        SetupStep::Seccomp => Step::Seccomp,
        SetupStep::Task => Step::Task,
        SetupStep::Files => Step::Files,
        SetupStep::Workdir => Step::Workdir,
        SetupStep::Stdio => Step::Stdio,
        SetupStep::Hostname => Step::Hostname,
        SetupStep::Disk => Step::Disk,
        SetupStep::Proc => Step::Proc,
        SetupStep::Masks => Step::Masks,
        SetupStep::Terminals => Step::Terminals,
        SetupStep::Init => Step::Init,
        SetupStep::Fork => Step::Fork,
    }
}
