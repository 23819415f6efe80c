//! What is left of a jail after its processes have exited, and can be used again or must be released.

use super::ids::lease::IdLease;
use super::warm::namespaces::NamespaceSet;
use crate::cgroup::Group;

/// Resources of a jail that a later jail can reuse.
pub(super) struct Recyclable {
    pub(super) group: Option<Group>,
    pub(super) ids: IdSource,
}

/// Where the user ids of a jail came from.
pub(super) enum IdSource {
    /// A lease of the jail's own. All its namespaces were its own, too.
    Lease(IdLease),
    /// The reusable namespace set that the jail was built on.
    NamespaceSet(Box<NamespaceSet>),
}
