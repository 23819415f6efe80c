//! Creates a namespace set: the namespaces that successive jails of a zygote share. No process stays in it
//! after its creation.
//!
//! The builder forks a process that switches to the zygote's user, which must own the user namespace, and
//! clones from there: the builder's own memory, which every PID 1 shares, must stay invisible to others.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use serde::{Deserialize, Serialize};

use super::builder::BuilderSetup;
use super::{SetupReport, await_byte, await_ready, init, mounts, privileges, send_report};
use crate::launcher::ids::map::{IdExtent, write_maps};
use crate::step::{Step, StepFailed, step};
use crate::sys::errno;
use crate::sys::{self, CloneResult};
use crate::wire;

/// A namespace set to create.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NamespaceSetPlan {
    pub(crate) uids: Vec<IdExtent>,
    pub(crate) gids: Vec<IdExtent>,
    /// Whether PID 1 of the jails has a user id other than the program's.
    pub(crate) own_init_uid: bool,
}

/// Creates a namespace set. Returns its user, network and mount namespace, and its socket statistics file.
pub(super) fn create(builder: &BuilderSetup<'_>, new: &NamespaceSetPlan) -> Result<Vec<OwnedFd>, StepFailed> {
    let (ours, theirs) = step(Step::Namespaces, "", sys::packet_socketpair)?;
    match step(Step::Namespaces, "", || sys::clone(0, None))? {
        CloneResult::Child => {
            let made = create_as_owner(builder, new);
            let fds: Vec<_> = made.iter().flatten().map(AsFd::as_fd).collect();
            // The builder treats a missing answer as a failure.
            let _sent = wire::send(theirs.as_fd(), &made.as_ref().err(), &fds);
            sys::exit_now(0)
        }
        CloneResult::Parent { .. } => drop(theirs),
    }
    let lost = |errno| StepFailed::new(Step::Namespaces, "", errno);
    match wire::receive_one::<Option<StepFailed>>(ours.as_fd()).map_err(lost)? {
        Some((None, namespaces)) if namespaces.len() == 4 => Ok(namespaces),
        Some((Some(failed), _)) => Err(failed),
        Some((None, _)) | None => Err(lost(Errno::CHILD)),
    }
}

fn create_as_owner(builder: &BuilderSetup<'_>, new: &NamespaceSetPlan) -> Result<Vec<OwnedFd>, StepFailed> {
    let pipe = || step(Step::Namespaces, "", || rustix::pipe::pipe_with(PipeFlags::CLOEXEC));
    let ((report, report_writer), (go, let_go)) = (pipe()?, pipe()?);
    let own = rustix::process::geteuid().as_raw();
    step(Step::Namespaces, "", || sys::set_effective_uid(builder.owner))?;
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET;
    let maker = match step(Step::Namespaces, "", || sys::clone(flags, None))? {
        CloneResult::Child => run_namespace_creator(builder.root_path, new.own_init_uid, &go, &report_writer),
        CloneResult::Parent { pidfd, .. } => pidfd.ok_or(Errno::NOSYS),
    };
    drop((go, report_writer));
    step(Step::IdMap, "", || {
        sys::set_effective_uid(own)?;
        let pid = sys::pid_in_procfs(builder.proc, &maker?)?;
        write_maps(builder.proc, pid, &new.uids, &new.gids)?;
        rustix::io::write(&let_go, b"1")?;
        Ok(pid)
    })
    .and_then(|pid| {
        await_ready(report.as_fd())?;
        let names = ["ns/user", "ns/net", "ns/mnt", "net/sockstat"];
        names.into_iter().map(|name| open(builder.proc, pid, name)).collect()
    })
}

fn open(proc: &OwnedFd, pid: i32, name: &str) -> Result<OwnedFd, StepFailed> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    step(Step::Namespaces, name, || rustix::fs::openat(proc, format!("{pid}/{name}"), flags, Mode::empty()))
}

/// Runs as the process that creates a namespace set, until its namespaces have been opened.
fn run_namespace_creator(root: &str, own_init_uid: bool, go: &OwnedFd, report: &OwnedFd) -> ! {
    let result = set_up_namespaces(root, own_init_uid, go, report)
        .map_or_else(SetupReport::Failed, |()| SetupReport::Ready);
    send_report(report, &result);
    // Blocks until the builder closes the pipe.
    let _end = await_byte(go);
    sys::exit_now(0)
}

fn set_up_namespaces(
    root: &str,
    own_init_uid: bool,
    go: &OwnedFd,
    report: &OwnedFd,
) -> Result<(), StepFailed> {
    step(Step::IdMap, "", || {
        sys::die_with_parent()?;
        init::close_all_but(4, [go, report].into_iter())?;
        await_byte(go)
    })?;
    step(Step::Network, "", sys::loopback_up)?;
    step(Step::Ids, "", || {
        let uid = privileges::init_uid(own_init_uid);
        privileges::become_user(uid, uid)?;
        // The change of ids clears both. The namespaces are opened through this process's /proc, so it must
        // be dumpable.
        sys::die_with_parent()?;
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)
    })?;
    step(Step::Root, "", || mounts::enter_root(root))?;
    // The kernel permits a jail to mount its own /proc only if another one is fully visible. This one shows
    // no process, because its pid namespace is gone in a moment, and the jail's own covers it.
    step(Step::Proc, "", || belljar_zygote::mounts::mount_proc().map_err(errno))?;
    step(Step::Pivot, "", mounts::pivot)
}
