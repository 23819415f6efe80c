//! Giving up rights, and what tests may leave out of that.

use rustix::io::Errno;

use crate::bare::rights::ResourceLimit;
use crate::bare::{errno, rights};
use crate::fault;
use crate::spec::{INNER_INIT_UID, INNER_UID, Layer};

/// Becomes a user of the jail's namespace. `keep` stays as the saved id, to be taken up again later.
pub(super) fn become_user(uid: u32, keep: u32) -> Result<(), Errno> {
    rights::become_user((uid, uid), (keep, keep)).map_err(errno)
}

/// The user id of PID 1.
pub(super) fn init_uid(own: bool) -> u32 {
    if own { INNER_INIT_UID } else { INNER_UID }
}

/// Empties the bounding set; what this process has now it keeps, so this is done ahead of time.
pub(super) fn bound_capabilities() -> Result<(), Errno> {
    unless_without(Layer::NoCapabilities, rights::bound_capabilities)
}

/// Empties the other capability sets.
pub(super) fn drop_capabilities() -> Result<(), Errno> {
    unless_without(Layer::NoCapabilities, rights::drop_capabilities)
}

/// From here on, no program that is executed can give rights back.
pub(super) fn forbid_new_privileges() -> Result<(), Errno> {
    unless_without(Layer::NoNewPrivs, rights::forbid_new_privileges)
}

pub(super) fn limit(limits: &[ResourceLimit]) -> Result<(), Errno> {
    unless_without(Layer::Rlimits, || rights::limit(limits))
}

fn unless_without(
    layer: Layer,
    perform: impl FnOnce() -> crate::bare::call::Answer<()>,
) -> Result<(), Errno> {
    if fault::without(layer) { Ok(()) } else { perform().map_err(errno) }
}
