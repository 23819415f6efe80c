//! A zygote's child, from its first moment to the first byte of the tenant's: the steps that confine, in an order that is
//! its own documentation.

use super::call::{Answer, BAD_MESSAGE, HERE, Refused, at, call, close, number, plain, prctl, write_all};
use super::message::{Birth, BirthStep, DOORS, LINE, OWN_LINE, Word, from_bytes, kind, without};
use super::{rights, socket};

const CLONE_NEWCGROUP: usize = 0x0200_0000;
const PR_SET_PDEATHSIG: usize = 1;
const PR_SET_DUMPABLE: usize = 4;
const SIGKILL: usize = 9;
const SECCOMP_SET_MODE_FILTER: usize = 1;
const SECCOMP_FILTER_FLAG_NEW_LISTENER: usize = 8;
const O_CLOEXEC: usize = 0o2_000_000;
const O_PATH: usize = 0o10_000_000;
const BUSY: Refused = Refused(16);

/// A step that failed.
pub(crate) struct Failed {
    pub(crate) step: BirthStep,
    pub(crate) why: Refused,
}

/// A filter as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) len: u16,
    pub(crate) instructions: usize,
}

/// What a child that is confined has to tell the launcher.
pub(crate) struct Born {
    /// The workspace, through which the launcher looks at the disk without a path in it.
    pub(crate) disk: i32,
    /// Of its filter, where it has one.
    pub(crate) listener: Option<i32>,
}

/// Confines this process, which is in its namespaces already. PID 1 says at `place` when those are finished.
pub(crate) fn enter(birth: &Birth, fds: &[i32], place: i32, filter: &Program) -> Result<Born, Failed> {
    let left_out = |layer: u32| cfg!(feature = "faults") && birth.without & layer != 0;
    let step = |step: BirthStep, perform: &mut dyn FnMut() -> Answer<()>| {
        if cfg!(feature = "faults") && birth.fail == step as u32 {
            return Err(Failed { step, why: Refused(28) });
        }
        perform().map_err(|why| Failed { step, why })
    };
    step(BirthStep::JoinCgroup, &mut || {
        fds[DOORS..].iter().try_for_each(|door| write_all(*door, b"0"))
    })?;
    if !left_out(without::CGROUP_NAMESPACE) {
        step(BirthStep::CgroupNamespace, &mut || plain(number::UNSHARE, &[CLONE_NEWCGROUP]).map(drop))?;
    }
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
    if !left_out(without::NO_NEW_PRIVS) {
        step(BirthStep::NoNewPrivs, &mut rights::forbid_new_privileges)?;
    }
    let rules = await_place(place)?;
    if let Some(rules) = rules.filter(|_| !left_out(without::LANDLOCK)) {
        step(BirthStep::Landlock, &mut || plain(number::LANDLOCK_RESTRICT_SELF, &[rules as usize, 0]).map(drop))?;
    }
    step(BirthStep::Order, &mut || {
        plain(number::DUP3, &[fds[OWN_LINE] as usize, LINE as usize, O_CLOEXEC])?;
        plain(number::CLOSE_RANGE, &[LINE as usize + 1, u32::MAX as usize, 0]).map(drop)
    })?;
    let mut disk = -1;
    step(BirthStep::Disk, &mut || {
        disk = out_of_the_way(at(number::OPENAT, HERE, c"/workspace", &[O_PATH | O_CLOEXEC])?)? as i32;
        Ok(())
    })?;
    let mut listener = None;
    // Last: the filter would forbid the steps above.
    if !left_out(without::SECCOMP) {
        step(BirthStep::Seccomp, &mut || {
            listener = install_to_be_heard(filter)?;
            Ok(())
        })?;
    }
    Ok(Born { disk, listener })
}

/// Waits until PID 1 has finished the place; gives the rules of the second guard on files.
fn await_place(place: i32) -> Result<Option<i32>, Failed> {
    let failed = |step: BirthStep| move |why: Refused| Failed { step, why };
    let mut packet = [0; size_of::<Word>()];
    let received = socket::receive(place, &mut packet).map_err(failed(BirthStep::Init))?;
    let word = from_bytes::<Word>(&packet[..received.bytes]);
    let (word, _) = word.ok_or(BAD_MESSAGE).map_err(failed(BirthStep::Init))?;
    if word.kind != kind::READY {
        return Err(Failed { step: BirthStep::of(word.step).unwrap_or(BirthStep::Init), why: Refused(word.errno) });
    }
    Ok((received.fds_len > 0).then_some(received.fds[0]))
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
    match install(filter, SECCOMP_FILTER_FLAG_NEW_LISTENER) {
        Ok(listener) => Ok(Some(out_of_the_way(listener)? as i32)),
        Err(BUSY) => install(filter, 0).map(|_| None),
        Err(refused) => Err(refused),
    }
}

/// Installs a filter.
pub(crate) fn install(filter: &Program, flags: usize) -> Answer<usize> {
    let arguments = [SECCOMP_SET_MODE_FILTER, flags, core::ptr::from_ref(filter) as usize, 0, 0, 0];
    // SAFETY: the program and its instructions live as long as this process; the kernel copies them.
    unsafe { call(number::SECCOMP, arguments) }
}
