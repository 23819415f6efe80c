//! PID 1 of a sandbox's jail: it sets up the jail like every PID 1, drops what a program's process drops, and
//! then becomes the guest. No process in the jail can kill it or read its memory.
//!
//! The launcher passes it `/proc/self/oom_score_adj`, opened for writing before Landlock applies, so that the
//! guest can raise the OOM score of what it starts.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::Mode;
use rustix::io::{Errno, FdFlags};

use super::{JailSetup, await_task, dup_to, init, mounts, program};
use crate::fault;
use crate::guest_support::{GUEST_NAME, GUEST_SOCKET_FD};
use crate::spec::Jail;
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, CStringArray};

/// Returns 0 if the launcher has no use for this jail, and otherwise only the reason why there is no guest.
pub(super) fn become_guest(setup: &JailSetup<'_>, binary: &OwnedFd) -> Result<i32, StepFailed> {
    let Some((jail, fds)) = await_task(&setup.init_socket)? else { return Ok(0) };
    let mut fds = fds.into_iter();
    let line = step(Step::Task, "", || fds.next().ok_or(Errno::BADF))?;
    let score = fds.next();
    mounts::resize_disk(&jail)?;
    step(Step::Stdio, "", || stdio(&line, score.as_ref()))?;
    confine(setup, &jail)?;
    Err(execute(binary, score.as_ref()))
}

/// Confines the guest. It runs as the sandbox user, so the kernel counts it among that user's processes.
fn confine(setup: &JailSetup<'_>, jail: &Jail) -> Result<(), StepFailed> {
    let ours = super::own_process_count(false, setup.cgroup_limits_processes);
    program::drop_privileges(setup, jail, ours, || {
        step(Step::Init, "", || {
            // The change of ids clears the death signal.
            init::die_with_launcher()?;
            if init::launcher_is_gone(&setup.report) { Err(Errno::SRCH) } else { Ok(()) }
        })
    })?;
    // Last, because the filter would forbid the steps above.
    step(Step::Seccomp, "", || program::install_notifying_filter(setup, &setup.init_socket))
}

/// Starts a session, with `/dev/null` at 0 to 2 and the guest's socket at 3. Only the OOM score file is
/// inherited besides.
fn stdio(line: &OwnedFd, score: Option<&OwnedFd>) -> Result<(), Errno> {
    rustix::process::setsid()?;
    sys::reset_sigpipe();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    dup_to(line, GUEST_SOCKET_FD)?;
    program::close_on_exec_from(GUEST_SOCKET_FD as u32 + 1)?;
    score.map_or(Ok(()), |score| rustix::io::fcntl_setfd(score, FdFlags::empty()))
}

fn execute(binary: &OwnedFd, score: Option<&OwnedFd>) -> StepFailed {
    let executed = || -> Result<Errno, Errno> {
        fault::inject(Step::Exec)?;
        let score = score.map(|score| score.as_raw_fd().to_string());
        let arguments: Vec<String> = [GUEST_NAME.to_owned()].into_iter().chain(score).collect();
        let (arguments, env) = (CStringArray::new(&arguments)?, CStringArray::new(&[])?);
        // The binary has no path, because a process in the jail could open it by one.
        let program = CString::new(format!("/proc/self/fd/{}", binary.as_raw_fd()));
        let program = program.map_err(|_| Errno::INVAL)?;
        Ok(sys::execve(&program, &arguments.pointers(), &env.pointers()))
    };
    StepFailed::new(Step::Exec, "the guest", executed().unwrap_or_else(|errno| errno))
}
