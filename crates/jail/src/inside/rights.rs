//! Giving up rights: ids, capabilities, new privileges.

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::fault;
use crate::spec::{INNER_INIT_UID, INNER_UID, Layer};
use crate::sys;

/// The highest capability that any kernel so far has is 40; asking for one that is not there ends the loop.
const MAX_CAPABILITY: u32 = 63;

/// Becomes a user of the jail's namespace. `keep` stays as the saved id, to be taken up again later.
pub(super) fn become_user(uid: u32, keep: u32) -> Result<(), Errno> {
    match rustix::thread::set_thread_groups(&[]) {
        // Where an ordinary user made the namespace, groups cannot be changed at all, and none was gained.
        Ok(()) | Err(Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    let (gid, keep_gid) = (Gid::from_raw(uid), Gid::from_raw(keep));
    rustix::thread::set_thread_res_gid(gid, gid, keep_gid)?;
    let (uid, keep) = (Uid::from_raw(uid), Uid::from_raw(keep));
    rustix::thread::set_thread_res_uid(uid, uid, keep)
}

/// The user id of PID 1.
pub(super) fn init_uid(own: bool) -> u32 {
    if own { INNER_INIT_UID } else { INNER_UID }
}

/// Empties the bounding set: nothing that is executed from here on can give a capability. What this process has now
/// it keeps, so this is done ahead of time.
pub(super) fn bound_capabilities() -> Result<(), Errno> {
    if fault::without(Layer::NoCapabilities) {
        return Ok(());
    }
    for number in 0..=MAX_CAPABILITY {
        let Some(capability) = CapabilitySet::from_bits(1 << number) else { continue };
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Empties the other four sets: ambient, effective, permitted, inheritable.
pub(super) fn drop_capabilities() -> Result<(), Errno> {
    if fault::without(Layer::NoCapabilities) {
        return Ok(());
    }
    sys::clear_ambient_capabilities()?;
    let none = rustix::thread::CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none)
}

/// From here on, no program that is executed can give rights back.
pub(super) fn forbid_new_privileges() -> Result<(), Errno> {
    if fault::without(Layer::NoNewPrivs) {
        return Ok(());
    }
    rustix::thread::set_no_new_privs(true)
}
