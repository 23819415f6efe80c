//! Confines a zygote's child, from its fork to the start of the tenant's code. The order of the steps
//! matters.
//!
//! ```text
//! rlimits → bounding set → ids → capabilities → cgroup → no_new_privs → landlock → seccomp → ready, with the
//! listener of the filter ─▶ inspected from outside → (preimports) → task → files → streams → (packages) → run
//! ```

use crate::flags::{O_CLOEXEC, PR_SET_PDEATHSIG, SIGKILL};
use crate::install_filter::{self, FilterProgram};
use crate::message::{ForkRequest, LAUNCHER_FD, OPTIONAL_FDS, OWN_SOCKET, SetupStep, without};
use crate::privileges;
use crate::syscall::{RawErrno, SysResult, close, number, prctl, safe_syscall, write_all};

const PR_SET_DUMPABLE: usize = 4;
const SECCOMP_FILTER_FLAG_NEW_LISTENER: usize = 8;
const BUSY: RawErrno = RawErrno(16);

/// A setup step that failed.
pub(crate) struct SetupFailed {
    pub(crate) step: SetupStep,
    pub(crate) why: RawErrno,
}

/// Confines this process, which has already entered its namespaces. Returns the notification listener of its
/// filter, if it has one.
pub(crate) fn confine(
    request: &ForkRequest,
    fds: &[i32],
    filter: &FilterProgram,
) -> Result<Option<i32>, SetupFailed> {
    let left_out = |layer: u32| cfg!(feature = "faults") && request.layers_left_out & layer != 0;
    let step = |step: SetupStep, perform: &mut dyn FnMut() -> SysResult<()>| {
        if cfg!(feature = "faults") && request.failing_step == step as u32 {
            return Err(SetupFailed { step, why: RawErrno(28) });
        }
        perform().map_err(|why| SetupFailed { step, why })
    };
    let (rules, join_fds) = fds[OPTIONAL_FDS..].split_at(request.has_rules as usize);
    step(SetupStep::Rlimits, &mut || {
        safe_syscall(number::SETSID, &[])?;
        safe_syscall(number::UMASK, &[0o022])?;
        if left_out(without::RLIMITS) {
            return Ok(());
        }
        privileges::set_rlimits(&request.limits[..request.limits_len as usize])
    })?;
    if !left_out(without::CAPABILITIES) {
        step(SetupStep::Capabilities, &mut privileges::clear_bounding_set)?;
    }
    step(SetupStep::Ids, &mut || {
        privileges::become_user((request.uid, request.uid), (request.uid, request.uid))?;
        // The change of ids clears the death signal and the dumpable flag. With them set again, the child
        // dies with the launcher, and its files in /proc belong to its user.
        prctl(PR_SET_PDEATHSIG, SIGKILL)?;
        prctl(PR_SET_DUMPABLE, 1).map(drop)
    })?;
    // ── from here on: unprivileged ──
    if !left_out(without::CAPABILITIES) {
        step(SetupStep::Capabilities, &mut privileges::drop_capabilities)?;
    }
    // The join fds were opened as this user, so they cannot move other users' processes.
    step(SetupStep::JoinCgroup, &mut || join_fds.iter().try_for_each(|fd| write_all(*fd, b"0")))?;
    if !left_out(without::NO_NEW_PRIVS) {
        step(SetupStep::NoNewPrivs, &mut privileges::set_no_new_privs)?;
    }
    if let Some(rules) = rules.first().filter(|_| !left_out(without::LANDLOCK)) {
        step(SetupStep::Landlock, &mut || {
            safe_syscall(number::LANDLOCK_RESTRICT_SELF, &[*rules as usize, 0]).map(drop)
        })?;
    }
    step(SetupStep::Task, &mut || {
        safe_syscall(number::DUP3, &[fds[OWN_SOCKET] as usize, LAUNCHER_FD as usize, O_CLOEXEC])?;
        safe_syscall(number::CLOSE_RANGE, &[LAUNCHER_FD as usize + 1, u32::MAX as usize, 0]).map(drop)
    })?;
    let mut listener = None;
    // Last, because the filter would forbid the steps above.
    if !left_out(without::SECCOMP) {
        step(SetupStep::Seccomp, &mut || {
            listener = install_with_listener(filter)?;
            Ok(())
        })?;
    }
    Ok(listener)
}

/// Moves a descriptor to a high number. Low numbers belong to the interpreter, which may put its own
/// descriptors there before the listener is sent.
fn move_fd_up(fd: usize) -> SysResult<usize> {
    const F_DUPFD_CLOEXEC: usize = 1_030;
    let moved = safe_syscall(number::FCNTL, &[fd, F_DUPFD_CLOEXEC, 64])?;
    close(fd as i32);
    Ok(moved)
}

/// Installs the filter, with a listener unless this process already has a filter with one.
fn install_with_listener(filter: &FilterProgram) -> SysResult<Option<i32>> {
    match install_filter::install_filter(filter, SECCOMP_FILTER_FLAG_NEW_LISTENER) {
        Ok(listener) => Ok(Some(move_fd_up(listener)? as i32)),
        Err(BUSY) => install_filter::install_filter(filter, 0).map(|_| None),
        Err(refused) => Err(refused),
    }
}
