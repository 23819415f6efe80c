//! Host user ids: one per running container of this process, none of them a real user's.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::daemon::MAX_CONTAINERS;

/// Far above the ids that systems assign to people, services and subordinate ranges.
pub(super) const FIRST: u32 = 0x4000_0000;
/// A daemon that remaps ids has few of them, and they match no user outside.
const FIRST_MAPPED: u32 = 1_000;

/// The ids in use.
#[derive(Debug, Clone, Default)]
pub(super) struct Users(Arc<Mutex<BTreeSet<u32>>>);

/// A leased user id, returned on drop.
#[derive(Debug)]
pub(super) struct User {
    pub(super) id: u32,
    users: Users,
}

impl Users {
    /// Leases the lowest free id. There are as many ids as containers.
    pub(super) fn take(&self, mapped: bool) -> User {
        let first = if mapped { FIRST_MAPPED } else { FIRST + ((std::process::id() & 0x3f_ffff) << 8) };
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = (first..=first + MAX_CONTAINERS as u32).find(|id| !taken.contains(id)).unwrap_or(first);
        taken.insert(id);
        User { id, users: self.clone() }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.users.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_live_ones_have_the_same() {
        let users = Users::default();
        let (one, two) = (users.take(false), users.take(false));
        assert!(one.id != two.id && one.id >= FIRST);
        let free = one.id;
        drop(one);
        assert_eq!(users.take(false).id, free);
        assert_eq!(Users::default().take(true).id, 1_000);
    }
}
