//! Setup of a zygote: a warm interpreter that runs no tenant code itself, only in its children.
//!
//! Before its first instruction it has its own pid, mount, network, ipc and uts namespaces, a cgroup,
//! resource limits, a user id that nothing else uses, no capabilities, a Landlock domain and a filter. To
//! fork children into jails it only needs its user to own their user namespaces; it creates no namespace and
//! mounts nothing. It shares the launcher's user namespace, because it could not enter a jail's from any
//! other.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Ground, Told, init, landlock, mounts, place_at, rights, tell, write_once};
use crate::bare::errno;
use crate::bare::message::LINE;
use crate::bare::rights::{ResourceLimit, become_user, limit};
use crate::fault;
use crate::seccomp::Filter;
use crate::spec::Layer;
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, Words};

/// Input of a new zygote.
pub(crate) struct Nest<'a> {
    pub(crate) ground: Ground<'a>,
    pub(crate) groups: &'a [OwnedFd],
    /// Pipe to which a failed step is reported.
    pub(crate) report: OwnedFd,
    /// Standard input, output and error.
    pub(crate) streams: [OwnedFd; 3],
    /// Socket to the launcher.
    pub(crate) line: OwnedFd,
    pub(crate) filter: &'a Filter,
    pub(crate) limits: &'a [ResourceLimit],
    pub(crate) landlock: bool,
    /// Directories of the root that are hidden from it.
    pub(crate) hidden: &'a [String],
    /// Files in its inbox.
    pub(crate) files: &'a [(&'a str, &'a [u8])],
    pub(crate) command: &'a [String],
    pub(crate) env: &'a [String],
}

/// Runs as a new zygote; never returns.
pub(crate) fn enter_nest(nest: &Nest<'_>) -> ! {
    let failed = settle(nest);
    tell(&nest.report, &Told::Failed(failed));
    sys::exit_now(1)
}

/// Confines this process and executes the interpreter. Returns only the failure.
fn settle(nest: &Nest<'_>) -> StepFailed {
    match confine(nest) {
        Ok(()) => execute(nest),
        Err(failed) => failed,
    }
}

fn confine(nest: &Nest<'_>) -> Result<(), StepFailed> {
    step(Step::Namespaces, "", || {
        sys::die_with_parent()?;
        sys::occupy_standard_numbers()?;
        let own = [&nest.report, &nest.line].into_iter();
        init::close_all_but(4, own.chain(&nest.streams).chain(nest.groups))
    })?;
    step(Step::JoinCgroup, "", || nest.groups.iter().try_for_each(|tasks| write_once(tasks, "0")))?;
    let inbox = mounts::build_nest(&nest.ground, nest.hidden)?;
    step(Step::Inbox, "", || nest.files.iter().try_for_each(|(name, content)| put(&inbox, name, content)))?;
    step(Step::Stdio, "", || {
        rustix::process::setsid()?;
        for (number, stream) in (0..).zip(&nest.streams) {
            place_at(stream, number)?;
        }
        place_at(&nest.line, LINE)
    })?;
    step(Step::Rlimits, "", || limit(nest.limits).map_err(errno))?;
    step(Step::Capabilities, "", rights::bound_capabilities)?;
    step(Step::Ids, "", || {
        become_user(nest.ground.owner, nest.ground.owner).map_err(errno)?;
        sys::die_with_parent()
    })?;
    step(Step::Capabilities, "", rights::drop_capabilities)?;
    step(Step::NoNewPrivs, "", rights::forbid_new_privileges)?;
    if nest.landlock && !fault::without(Layer::Landlock) {
        step(Step::Landlock, "", landlock::apply_to_zygote)?;
    }
    step(Step::Seccomp, "", || {
        if fault::without(Layer::Seccomp) {
            return Ok(());
        }
        nest.filter.install().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
    })
}

fn put(inbox: &OwnedFd, name: &str, content: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(inbox, name, flags, Mode::from_raw_mode(0o444))?;
    let mut rest = content;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(file.as_fd(), rest)?..];
    }
    Ok(())
}

fn execute(nest: &Nest<'_>) -> StepFailed {
    let name = nest.command.first().map_or("", String::as_str);
    let executed = || -> Result<Errno, Errno> {
        let (arguments, env) = (Words::of(nest.command)?, Words::of(nest.env)?);
        let program = CString::new(name).map_err(|_| Errno::INVAL)?;
        Ok(sys::execve(&program, &arguments.pointers(), &env.pointers()))
    };
    StepFailed::new(Step::Exec, name, executed().unwrap_or_else(|errno| errno))
}
