//! The disk quota of tenants: volumes, snapshots and sandboxes' disks in files count against it together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_store::{Error as StoreError, TenantName};
use tokio::sync;

use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::error::Error;

/// The sizes of the open disks in files of each tenant. The store has the sizes of volumes and snapshots.
#[derive(Debug, Default)]
pub(crate) struct OpenDisks {
    held: Arc<Mutex<HashMap<TenantName, u64>>>,
    /// Held while the rest of a quota is read and used, so that nothing is counted twice.
    pub(super) lock: sync::Mutex<()>,
}

/// The size of an open disk. Dropping it frees its part of the quota.
#[derive(Debug)]
pub(crate) struct HeldDisk {
    held: Arc<Mutex<HashMap<TenantName, u64>>>,
    tenant: TenantName,
    bytes: u64,
}

impl OpenDisks {
    /// Returns the size of all open disks of a tenant.
    pub(crate) fn held_bytes(&self, tenant: &TenantName) -> u64 {
        lock(&self.held).get(tenant).copied().unwrap_or(0)
    }

    /// Returns what is left of a quota for volumes and snapshots.
    pub(super) fn left_of(&self, quota: u64, tenant: &TenantName) -> u64 {
        quota.saturating_sub(self.held_bytes(tenant))
    }

    fn hold(&self, tenant: &TenantName, bytes: u64) -> HeldDisk {
        let mut held = lock(&self.held);
        let all = held.entry(tenant.clone()).or_default();
        *all = all.saturating_add(bytes);
        drop(held);
        HeldDisk { held: Arc::clone(&self.held), tenant: tenant.clone(), bytes }
    }
}

impl Drop for HeldDisk {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        if let Some(all) = held.get_mut(&self.tenant) {
            *all -= self.bytes;
            if *all == 0 {
                held.remove(&self.tenant);
            }
        }
    }
}

/// Reserves a disk of this size from the caller's quota.
pub(crate) async fn reserve_disk(state: &AppState, caller: &Caller, bytes: u64) -> Result<HeldDisk, Error> {
    let (tenant, disks) = (&caller.tenant, &state.open_disks);
    let _step = disks.lock.lock().await;
    let stored = state.store.owned_objects(tenant).await?.ok_or(Error::NotFound("tenant"))?.disk_bytes;
    let left = disks.left_of(state.disk_quota(caller), tenant).saturating_sub(stored);
    if bytes > left {
        return Err(StoreError::Quota { left }.into());
    }
    Ok(disks.hold(tenant, bytes))
}

fn lock(held: &Mutex<HashMap<TenantName, u64>>) -> MutexGuard<'_, HashMap<TenantName, u64>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_disks_count_until_they_are_dropped() {
        let (disks, tenant) = (OpenDisks::default(), "a".parse().unwrap());
        let (one, two) = (disks.hold(&tenant, 3), disks.hold(&tenant, 4));
        assert_eq!((disks.held_bytes(&tenant), disks.left_of(10, &tenant)), (7, 3));
        assert_eq!(disks.held_bytes(&"b".parse().unwrap()), 0);
        drop(one);
        assert_eq!((disks.held_bytes(&tenant), disks.left_of(1, &tenant)), (4, 0));
        drop(two);
        assert!(lock(&disks.held).is_empty());
    }
}
