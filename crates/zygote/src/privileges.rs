//! Drops privileges: ids, capabilities, `no_new_privs`, resource limits.

use crate::syscall::{EINVAL, EPERM, SysResult, number, prctl, safe_syscall, syscall};

const PR_CAPBSET_DROP: usize = 24;
const PR_SET_NO_NEW_PRIVS: usize = 38;
const PR_CAP_AMBIENT: usize = 47;
const PR_CAP_AMBIENT_CLEAR_ALL: usize = 4;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// No kernel so far has a capability above 40. The loop ends at the first number the kernel does not know.
const MAX_CAPABILITY: usize = 63;

/// A resource limit. The hard limit of the process is never raised.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourceLimit {
    /// The number of the resource.
    pub resource: u64,
    /// The soft limit.
    pub soft: u64,
    /// The hard limit.
    pub hard: u64,
}

/// Sets the user and group ids. `keep` becomes the saved ids, which the process can switch back to later.
pub fn become_user((uid, gid): (u32, u32), keep: (u32, u32)) -> SysResult<()> {
    match safe_syscall(number::SETGROUPS, &[0, 0]) {
        // If an unprivileged user created the namespace, `setgroups` is forbidden, and no group was gained
        // either.
        Ok(_) | Err(EPERM) => {}
        Err(refused) => return Err(refused),
    }
    safe_syscall(number::SETRESGID, &[gid as usize, gid as usize, keep.1 as usize])?;
    safe_syscall(number::SETRESUID, &[uid as usize, uid as usize, keep.0 as usize]).map(drop)
}

/// Empties the bounding set, so that no executed program can gain a capability. Current capabilities are
/// kept.
pub fn clear_bounding_set() -> SysResult<()> {
    limit_bounding_set(0)
}

/// Removes all capabilities from the bounding set but those in `kept`, a set of numbers below 32.
pub fn limit_bounding_set(kept: u32) -> SysResult<()> {
    for capability in (0..=MAX_CAPABILITY).filter(|number| *number >= 32 || kept & 1 << *number == 0) {
        match prctl(PR_CAPBSET_DROP, capability) {
            Ok(_) => {}
            Err(EINVAL) => break,
            Err(refused) => return Err(refused),
        }
    }
    Ok(())
}

/// Empties the ambient, effective, permitted and inheritable capability sets.
pub fn drop_capabilities() -> SysResult<()> {
    limit_capabilities(0)
}

/// Empties the ambient and inheritable capability sets, and leaves those in `kept`, a set of numbers below 32, in the
/// effective and permitted ones.
pub fn limit_capabilities(kept: u32) -> SysResult<()> {
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)?;
    let header = [CAPABILITY_VERSION_3, 0];
    // Effective, permitted and inheritable for the numbers below 32, then for the others.
    let sets = [kept, kept, 0, 0, 0, 0];
    let arguments = [header.as_ptr() as usize, sets.as_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: version 3 has a header of two words and two sets of three words; both arrays live across the
    // call.
    unsafe { syscall(number::CAPSET, arguments) }.map(drop)
}

/// Sets `no_new_privs`: no program executed from here on can regain privileges.
pub fn set_no_new_privs() -> SysResult<()> {
    prctl(PR_SET_NO_NEW_PRIVS, 1).map(drop)
}

/// Sets resource limits, each capped at the current hard limit.
pub fn set_rlimits(limits: &[ResourceLimit]) -> SysResult<()> {
    for limit in limits {
        let mut now = [0_u64; 2];
        let resource = limit.resource as usize;
        // SAFETY: the kernel writes two 64-bit numbers to `now`.
        unsafe { syscall(number::PRLIMIT, [0, resource, 0, now.as_mut_ptr() as usize, 0, 0]) }?;
        let hard = limit.hard.min(now[1]);
        let wanted = [limit.soft.min(hard), hard];
        // SAFETY: the kernel reads two 64-bit numbers from `wanted`.
        unsafe { syscall(number::PRLIMIT, [0, resource, wanted.as_ptr() as usize, 0, 0, 0]) }?;
    }
    Ok(())
}
