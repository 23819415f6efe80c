//! Drops privileges, except those that a test leaves in place.

use belljar_model::layer::Layer;
use belljar_zygote::privileges::{self, ResourceLimit};
use rustix::io::Errno;

use crate::fault;
use crate::spec::{INNER_INIT_UID, INNER_UID, ROOT_CAPABILITIES};
use crate::sys::errno;

/// Switches to a user of the jail's namespace. `keep` becomes the saved id, which the process can switch back
/// to later.
pub(super) fn become_user(uid: u32, keep: u32) -> Result<(), Errno> {
    privileges::become_user((uid, uid), (keep, keep)).map_err(errno)
}

/// Returns the user id of PID 1.
pub(super) fn init_uid(own: bool) -> u32 {
    if own { INNER_INIT_UID } else { INNER_UID }
}

/// Empties the bounding set. Current capabilities are kept, so this can be done in advance.
pub(super) fn clear_bounding_set() -> Result<(), Errno> {
    unless_left_out(Layer::NoCapabilities, privileges::clear_bounding_set)
}

/// Limits the bounding set to the capabilities of the root user of a writable root.
pub(super) fn limit_bounding_set() -> Result<(), Errno> {
    unless_left_out(Layer::NoCapabilities, || privileges::limit_bounding_set(root_capabilities()))
}

/// Drops all capabilities but those of the root user of a writable root.
pub(super) fn keep_root_capabilities() -> Result<(), Errno> {
    unless_left_out(Layer::NoCapabilities, || privileges::limit_capabilities(root_capabilities()))
}

fn root_capabilities() -> u32 {
    ROOT_CAPABILITIES.iter().fold(0, |all, (_, number)| all | 1 << number)
}

/// Empties the other capability sets.
pub(super) fn drop_capabilities() -> Result<(), Errno> {
    unless_left_out(Layer::NoCapabilities, privileges::drop_capabilities)
}

/// Sets `no_new_privs`: no program executed from here on can regain privileges.
pub(super) fn set_no_new_privs() -> Result<(), Errno> {
    unless_left_out(Layer::NoNewPrivs, privileges::set_no_new_privs)
}

pub(super) fn set_rlimits(limits: &[ResourceLimit]) -> Result<(), Errno> {
    unless_left_out(Layer::Rlimits, || privileges::set_rlimits(limits))
}

fn unless_left_out(
    layer: Layer,
    perform: impl FnOnce() -> belljar_zygote::syscall::SysResult<()>,
) -> Result<(), Errno> {
    if fault::is_left_out(layer) { Ok(()) } else { perform().map_err(errno) }
}
