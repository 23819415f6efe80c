//! A zygote's child, from its first moment to the first byte of the tenant's: the steps that confine, in an order that is
//! its own documentation.

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

/// A step that failed.
pub(crate) struct Failed {
    pub(crate) step: BirthStep,
    pub(crate) why: Refused,
}

/// Confines this process, which has entered its namespaces already. Gives the listener of its filter, where it has one.
pub(crate) fn enter(birth: &Birth, fds: &[i32], filter: &Program) -> Result<Option<i32>, Failed> {
    let left_out = |layer: u32| cfg!(feature = "faults") && birth.without & layer != 0;
    let step = |step: BirthStep, perform: &mut dyn FnMut() -> Answer<()>| {
        if cfg!(feature = "faults") && birth.fail == step as u32 {
            return Err(Failed { step, why: Refused(28) });
        }
        perform().map_err(|why| Failed { step, why })
    };
    let (rules, doors) = fds[REST..].split_at(birth.has_rules as usize);
    step(BirthStep::Rlimits, &mut || {
        plain(number::SETSID, &[])?;
        plain(number::UMASK, &[0o022])?;
        if left_out(without::RLIMITS) {
            return Ok(());
        }
        rights::limit(&birth.limits[..birth.limits_len as usize])
    })?;
    if !left_out(without::CAPABILITIES) {
        step(BirthStep::Capabilities, &mut rights::bound_capabilities)?;
    }
    step(BirthStep::Ids, &mut || {
        rights::become_user((birth.uid, birth.uid), (birth.uid, birth.uid))?;
        // Lost and reset with the change of ids: it dies with the launcher, and what is its own in /proc is its own.
        prctl(PR_SET_PDEATHSIG, SIGKILL)?;
        prctl(PR_SET_DUMPABLE, 1).map(drop)
    })?;
    // ── below this line we are nobody ──
    if !left_out(without::CAPABILITIES) {
        step(BirthStep::Capabilities, &mut rights::drop_capabilities)?;
    }
    // The doors were opened as this very user, so they let in nobody else's processes.
    step(BirthStep::JoinCgroup, &mut || doors.iter().try_for_each(|door| write_all(*door, b"0")))?;
    if !left_out(without::NO_NEW_PRIVS) {
        step(BirthStep::NoNewPrivs, &mut rights::forbid_new_privileges)?;
    }
    if let Some(rules) = rules.first().filter(|_| !left_out(without::LANDLOCK)) {
        step(BirthStep::Landlock, &mut || plain(number::LANDLOCK_RESTRICT_SELF, &[*rules as usize, 0]).map(drop))?;
    }
    step(BirthStep::Order, &mut || {
        plain(number::DUP3, &[fds[OWN_LINE] as usize, LINE as usize, O_CLOEXEC])?;
        plain(number::CLOSE_RANGE, &[LINE as usize + 1, u32::MAX as usize, 0]).map(drop)
    })?;
    let mut listener = None;
    // Last: the filter would forbid the steps above.
    if !left_out(without::SECCOMP) {
        step(BirthStep::Seccomp, &mut || {
            listener = install_to_be_heard(filter)?;
            Ok(())
        })?;
    }
    Ok(listener)
}

/// Low numbers are the interpreter's, which may have something to put there before the listener is sent away.
fn out_of_the_way(fd: usize) -> Answer<usize> {
    const F_DUPFD_CLOEXEC: usize = 1_030;
    let moved = plain(number::FCNTL, &[fd, F_DUPFD_CLOEXEC, 64])?;
    close(fd as i32);
    Ok(moved)
}

/// Installs the filter, with a listener where nobody has one already.
fn install_to_be_heard(filter: &Program) -> Answer<Option<i32>> {
    match seccomp::install(filter, SECCOMP_FILTER_FLAG_NEW_LISTENER) {
        Ok(listener) => Ok(Some(out_of_the_way(listener)? as i32)),
        Err(BUSY) => seccomp::install(filter, 0).map(|_| None),
        Err(refused) => Err(refused),
    }
}
