//! PID 1 of a sandbox's jail: it sets up the jail like every PID 1, drops what a program's process drops, and
//! then becomes the guest. No process in the jail can kill it or read its memory.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::Mode;
use rustix::io::{Errno, FdFlags};

use super::{Shell, await_order, init, mounts, place_at, program};
use crate::fault;
use crate::session::{GUEST, LINE};
use crate::spec::Jail;
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, Words};

/// Returns 0 if the launcher has no use for this jail, and otherwise only the reason why there is no guest.
pub(super) fn live(shell: &Shell<'_>, binary: &OwnedFd) -> Result<i32, StepFailed> {
    let Some((jail, fds)) = await_order(&shell.orders)? else { return Ok(0) };
    let mut fds = fds.into_iter();
    let line = step(Step::Order, "", || fds.next().ok_or(Errno::BADF))?;
    let score = fds.next();
    mounts::size_disk(&jail)?;
    step(Step::Stdio, "", || stdio(&line, score.as_ref()))?;
    confine(shell, &jail)?;
    Err(execute(binary, score.as_ref()))
}

/// Confines the guest. It runs as the sandbox user, so the kernel counts it among that user's processes.
fn confine(shell: &Shell<'_>, jail: &Jail) -> Result<(), StepFailed> {
    let ours = super::processes_of_ours(false, shell.group_counts_processes);
    program::give_up(shell, jail, ours, || {
        step(Step::Init, "", || {
            // The change of ids clears the death signal.
            init::die_with_launcher()?;
            if init::launcher_is_gone(&shell.report) { Err(Errno::SRCH) } else { Ok(()) }
        })
    })?;
    // Last, because the filter would forbid the steps above.
    step(Step::Seccomp, "", || program::be_heard(shell, &shell.orders))
}

/// Starts a session, with `/dev/null` at 0 to 2 and the guest's socket at 3. Only the OOM score file is
/// inherited besides.
fn stdio(line: &OwnedFd, score: Option<&OwnedFd>) -> Result<(), Errno> {
    rustix::process::setsid()?;
    sys::default_pipe_signal();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    place_at(line, LINE)?;
    program::close_on_exec_from(LINE as u32 + 1)?;
    score.map_or(Ok(()), |score| rustix::io::fcntl_setfd(score, FdFlags::empty()))
}

fn execute(binary: &OwnedFd, score: Option<&OwnedFd>) -> StepFailed {
    let executed = || -> Result<Errno, Errno> {
        fault::inject(Step::Exec)?;
        let score = score.map(|score| score.as_raw_fd().to_string());
        let arguments: Vec<String> = [GUEST.to_owned()].into_iter().chain(score).collect();
        let (arguments, env) = (Words::of(&arguments)?, Words::of(&[])?);
        // The binary has no path, because a process in the jail could open it by one.
        let program = CString::new(format!("/proc/self/fd/{}", binary.as_raw_fd()));
        let program = program.map_err(|_| Errno::INVAL)?;
        Ok(sys::execve(&program, &arguments.pointers(), &env.pointers()))
    };
    StepFailed::new(Step::Exec, "the guest", executed().unwrap_or_else(|errno| errno))
}
