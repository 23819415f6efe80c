//! User and group ids of jails: leased from a range, and mapped in user namespaces.

pub(super) mod lease;
pub(crate) mod map;
