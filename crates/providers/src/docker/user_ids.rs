//! Host user ids: one per running container of this process, none of them a real user's.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Concurrent containers of this process, including those being removed.
pub(super) const MAX_CONTAINERS: usize = 128;
/// Far above the ids that systems assign to people, services and subordinate ranges.
pub(super) const FIRST_USER_ID: u32 = 0x4000_0000;
/// A daemon that remaps ids has few of them, and they match no user outside.
const FIRST_REMAPPED_ID: u32 = 1_000;

/// The ids in use.
#[derive(Debug, Clone, Default)]
pub(super) struct UserIds(Arc<Mutex<BTreeSet<u32>>>);

/// A leased user id, returned on drop.
#[derive(Debug)]
pub(super) struct UserIdLease {
    pub(super) id: u32,
    users: UserIds,
}

impl UserIds {
    /// Leases the lowest free id. There are as many ids as containers.
    pub(super) fn lease(&self, mapped: bool) -> UserIdLease {
        let first =
            if mapped { FIRST_REMAPPED_ID } else { FIRST_USER_ID + ((std::process::id() & 0x3f_ffff) << 8) };
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = (first..=first + MAX_CONTAINERS as u32).find(|id| !taken.contains(id)).unwrap_or(first);
        taken.insert(id);
        UserIdLease { id, users: self.clone() }
    }
}

impl Drop for UserIdLease {
    fn drop(&mut self) {
        self.users.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leased_ids_are_unique() {
        let users = UserIds::default();
        let (one, two) = (users.lease(false), users.lease(false));
        assert!(one.id != two.id && one.id >= FIRST_USER_ID);
        let free = one.id;
        drop(one);
        assert_eq!(users.lease(false).id, free);
        assert_eq!(UserIds::default().lease(true).id, 1_000);
    }
}
