//! Confines a zygote's child, from its fork to the start of the tenant's code. The order of the steps
//! matters.

use super::call::{Answer, Refused, close, number, plain, prctl, write_all};
use super::message::{Birth, BirthStep, LINE, OWN_LINE, REST, without};
use super::rights;
use super::seccomp::{self, Program};

const PR_SET_PDEATHSIG: usize = 1;
const PR_SET_DUMPABLE: usize = 4;
const SIGKILL: usize = 9;
const SECCOMP_FILTER_FLAG_NEW_LISTENER: usize = 8;
const O_CLOEXEC: usize = 0o2_000_000;
const BUSY: Refused = Refused(16);

/// A setup step that failed.
pub(crate) struct SetupFailed {
    pub(crate) step: BirthStep,
    pub(crate) why: Refused,
}

/// Confines this process, which has already entered its namespaces. Returns the notification listener of its
/// filter, if it has one.
pub(crate) fn confine(request: &Birth, fds: &[i32], filter: &Program) -> Result<Option<i32>, SetupFailed> {
    let left_out = |layer: u32| cfg!(feature = "faults") && request.without & layer != 0;
    let step = |step: BirthStep, perform: &mut dyn FnMut() -> Answer<()>| {
        if cfg!(feature = "faults") && request.fail == step as u32 {
            return Err(SetupFailed { step, why: Refused(28) });
        }
        perform().map_err(|why| SetupFailed { step, why })
    };
    let (rules, join_fds) = fds[REST..].split_at(request.has_rules as usize);
    step(BirthStep::Rlimits, &mut || {
        plain(number::SETSID, &[])?;
        plain(number::UMASK, &[0o022])?;
        if left_out(without::RLIMITS) {
            return Ok(());
        }
        rights::limit(&request.limits[..request.limits_len as usize])
    })?;
    if !left_out(without::CAPABILITIES) {
        step(BirthStep::Capabilities, &mut rights::bound_capabilities)?;
    }
    step(BirthStep::Ids, &mut || {
        rights::become_user((request.uid, request.uid), (request.uid, request.uid))?;
        // The change of ids clears the death signal and the dumpable flag. With them set again, the child
        // dies with the launcher, and its files in /proc belong to its user.
        prctl(PR_SET_PDEATHSIG, SIGKILL)?;
        prctl(PR_SET_DUMPABLE, 1).map(drop)
    })?;
    // ── from here on: unprivileged ──
    if !left_out(without::CAPABILITIES) {
        step(BirthStep::Capabilities, &mut rights::drop_capabilities)?;
    }
    // The join fds were opened as this user, so they cannot move other users' processes.
    step(BirthStep::JoinCgroup, &mut || join_fds.iter().try_for_each(|fd| write_all(*fd, b"0")))?;
    if !left_out(without::NO_NEW_PRIVS) {
        step(BirthStep::NoNewPrivs, &mut rights::forbid_new_privileges)?;
    }
    if let Some(rules) = rules.first().filter(|_| !left_out(without::LANDLOCK)) {
        step(BirthStep::Landlock, &mut || {
            plain(number::LANDLOCK_RESTRICT_SELF, &[*rules as usize, 0]).map(drop)
        })?;
    }
    step(BirthStep::Order, &mut || {
        plain(number::DUP3, &[fds[OWN_LINE] as usize, LINE as usize, O_CLOEXEC])?;
        plain(number::CLOSE_RANGE, &[LINE as usize + 1, u32::MAX as usize, 0]).map(drop)
    })?;
    let mut listener = None;
    // Last, because the filter would forbid the steps above.
    if !left_out(without::SECCOMP) {
        step(BirthStep::Seccomp, &mut || {
            listener = install_with_listener(filter)?;
            Ok(())
        })?;
    }
    Ok(listener)
}

/// Moves a descriptor to a high number. Low numbers belong to the interpreter, which may put its own
/// descriptors there before the listener is sent.
fn move_fd_up(fd: usize) -> Answer<usize> {
    const F_DUPFD_CLOEXEC: usize = 1_030;
    let moved = plain(number::FCNTL, &[fd, F_DUPFD_CLOEXEC, 64])?;
    close(fd as i32);
    Ok(moved)
}

/// Installs the filter, with a listener unless this process already has a filter with one.
fn install_with_listener(filter: &Program) -> Answer<Option<i32>> {
    match seccomp::install(filter, SECCOMP_FILTER_FLAG_NEW_LISTENER) {
        Ok(listener) => Ok(Some(move_fd_up(listener)? as i32)),
        Err(BUSY) => seccomp::install(filter, 0).map(|_| None),
        Err(refused) => Err(refused),
    }
}
