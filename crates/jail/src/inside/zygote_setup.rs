//! Setup of a zygote: a warm interpreter that runs no tenant code itself, only in its children.
//!
//! Before its first instruction it has its own pid, mount, network, ipc and uts namespaces, a cgroup,
//! resource limits, a user id that nothing else uses, no capabilities, a Landlock domain and a filter. To
//! fork children into jails it only needs its user to own their user namespaces; it creates no namespace and
//! mounts nothing. It shares the launcher's user namespace, because it could not enter a jail's from any
//! other.
//!
//! Nothing of a request is in it. Directories with packages of requests are hidden from it
//! (`WarmInterpreter::hidden`); a child puts them on its module search path after it is confined.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use belljar_model::layer::Layer;
use belljar_zygote::message::LAUNCHER_FD;
use belljar_zygote::privileges::{ResourceLimit, become_user, set_rlimits};
use belljar_zygote::syscall::write_all;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{MountPlan, SetupReport, dup_to, init, landlock, mounts, privileges, send_report, write_once};
use crate::fault;
use crate::seccomp::SeccompFilter;
use crate::step::{Step, StepFailed, step};
use crate::sys::errno;
use crate::sys::{self, CStringArray};

/// Input of a new zygote.
pub(crate) struct ZygoteSetup<'a> {
    pub(crate) mounts: MountPlan<'a>,
    pub(crate) cgroup_join_fds: &'a [OwnedFd],
    /// Pipe to which a failed step is reported.
    pub(crate) report: OwnedFd,
    /// Standard input, output and error.
    pub(crate) streams: [OwnedFd; 3],
    /// Socket to the launcher.
    pub(crate) launcher_socket: OwnedFd,
    pub(crate) filter: &'a SeccompFilter,
    pub(crate) limits: &'a [ResourceLimit],
    pub(crate) has_landlock: bool,
    /// Directories of the root that are hidden from it.
    pub(crate) hidden: &'a [String],
    /// Files in its inbox.
    pub(crate) files: &'a [(&'a str, &'a [u8])],
    pub(crate) command: &'a [String],
    pub(crate) env: &'a [String],
}

/// Runs as a new zygote; never returns.
pub(crate) fn run_zygote(setup: &ZygoteSetup<'_>) -> ! {
    let failed = confine_and_execute(setup);
    send_report(&setup.report, &SetupReport::Failed(failed));
    sys::exit_now(1)
}

/// Confines this process and executes the interpreter. Returns only the failure.
fn confine_and_execute(setup: &ZygoteSetup<'_>) -> StepFailed {
    match confine(setup) {
        Ok(()) => execute(setup),
        Err(failed) => failed,
    }
}

fn confine(setup: &ZygoteSetup<'_>) -> Result<(), StepFailed> {
    step(Step::Namespaces, "", || {
        sys::die_with_parent()?;
        sys::reserve_standard_fds()?;
        let own = [&setup.report, &setup.launcher_socket].into_iter();
        init::close_all_but(4, own.chain(&setup.streams).chain(setup.cgroup_join_fds))
    })?;
    step(Step::JoinCgroup, "", || setup.cgroup_join_fds.iter().try_for_each(|tasks| write_once(tasks, "0")))?;
    let inbox = mounts::build_zygote_root(&setup.mounts, setup.hidden)?;
    step(Step::Inbox, "", || {
        setup.files.iter().try_for_each(|(name, content)| write_inbox_file(&inbox, name, content))
    })?;
    step(Step::Stdio, "", || {
        rustix::process::setsid()?;
        for (number, stream) in (0..).zip(&setup.streams) {
            dup_to(stream, number)?;
        }
        dup_to(&setup.launcher_socket, LAUNCHER_FD)
    })?;
    step(Step::Rlimits, "", || set_rlimits(setup.limits).map_err(errno))?;
    step(Step::Capabilities, "", privileges::clear_bounding_set)?;
    step(Step::Ids, "", || {
        become_user(setup.mounts.owner, setup.mounts.owner).map_err(errno)?;
        sys::die_with_parent()
    })?;
    step(Step::Capabilities, "", privileges::drop_capabilities)?;
    step(Step::NoNewPrivs, "", privileges::set_no_new_privs)?;
    if setup.has_landlock && !fault::is_left_out(Layer::Landlock) {
        step(Step::Landlock, "", landlock::apply_to_zygote)?;
    }
    step(
        Step::Seccomp,
        "",
        || {
            if fault::is_left_out(Layer::Seccomp) { Ok(()) } else { setup.filter.install() }
        },
    )
}

fn write_inbox_file(inbox: &OwnedFd, name: &str, content: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(inbox, name, flags, Mode::from_raw_mode(0o444))?;
    write_all(file.as_raw_fd(), content).map_err(errno)
}

fn execute(setup: &ZygoteSetup<'_>) -> StepFailed {
    let name = setup.command.first().map_or("", String::as_str);
    let executed = || -> Result<Errno, Errno> {
        let (arguments, env) = (CStringArray::new(setup.command)?, CStringArray::new(setup.env)?);
        let program = CString::new(name).map_err(|_| Errno::INVAL)?;
        Ok(sys::execve(&program, &arguments.pointers(), &env.pointers()))
    };
    StepFailed::new(Step::Exec, name, executed().unwrap_or_else(|errno| errno))
}
