//! Giving up rights: ids, capabilities, new privileges, resources.

use super::call::{Answer, INVALID, NOT_PERMITTED, call, number, plain, prctl};

const PR_CAPBSET_DROP: usize = 24;
const PR_SET_NO_NEW_PRIVS: usize = 38;
const PR_CAP_AMBIENT: usize = 47;
const PR_CAP_AMBIENT_CLEAR_ALL: usize = 4;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// The highest capability that any kernel so far has is 40; asking for one that is not there ends the loop.
const MAX_CAPABILITY: usize = 63;

/// One resource limit, never above what this process may have.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ResourceLimit {
    pub(crate) resource: u64,
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

/// Becomes a user and a group. `keep` stays as the saved ids, to be taken up again later.
pub(crate) fn become_user((uid, gid): (u32, u32), keep: (u32, u32)) -> Answer<()> {
    match plain(number::SETGROUPS, &[0, 0]) {
        // Where an ordinary user made the namespace, groups cannot be changed at all, and none was gained.
        Ok(_) | Err(NOT_PERMITTED) => {}
        Err(refused) => return Err(refused),
    }
    plain(number::SETRESGID, &[gid as usize, gid as usize, keep.1 as usize])?;
    plain(number::SETRESUID, &[uid as usize, uid as usize, keep.0 as usize]).map(drop)
}

/// Empties the bounding set: nothing that is executed from here on can give a capability. What this process has now
/// it keeps.
pub(crate) fn bound_capabilities() -> Answer<()> {
    for capability in 0..=MAX_CAPABILITY {
        match prctl(PR_CAPBSET_DROP, capability) {
            Ok(_) => {}
            Err(INVALID) => break,
            Err(refused) => return Err(refused),
        }
    }
    Ok(())
}

/// Empties the other four sets: ambient, effective, permitted, inheritable.
pub(crate) fn drop_capabilities() -> Answer<()> {
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)?;
    let header = [CAPABILITY_VERSION_3, 0];
    let none = [0_u32; 6];
    let arguments = [header.as_ptr() as usize, none.as_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: this version has a header of two words and sets of two times three, and both live across the call.
    unsafe { call(number::CAPSET, arguments) }.map(drop)
}

/// From here on, no program that is executed can give rights back.
pub(crate) fn forbid_new_privileges() -> Answer<()> {
    prctl(PR_SET_NO_NEW_PRIVS, 1).map(drop)
}

/// Sets resource limits.
pub(crate) fn limit(limits: &[ResourceLimit]) -> Answer<()> {
    for limit in limits {
        let mut now = [0_u64; 2];
        let resource = limit.resource as usize;
        // SAFETY: the kernel writes two 64-bit numbers there.
        unsafe { call(number::PRLIMIT, [0, resource, 0, now.as_mut_ptr() as usize, 0, 0]) }?;
        let hard = limit.hard.min(now[1]);
        let wanted = [limit.soft.min(hard), hard];
        // SAFETY: the kernel reads two 64-bit numbers there.
        unsafe { call(number::PRLIMIT, [0, resource, wanted.as_ptr() as usize, 0, 0, 0]) }?;
    }
    Ok(())
}
