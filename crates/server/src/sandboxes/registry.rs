//! The registry of live sandboxes, and their slots.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_store::{SandboxId, TenantName};

use super::live_sandbox::LiveSandbox;
use crate::error::Error;
use crate::fair_share::{FairShare, ShareRefusal, Tenure};
use crate::share_pool::{OtherTenants, ShareKind, SharePool, ShareReservation};
use crate::storage::disk_quota::HeldDisk;
use crate::storage::mounts::MountedVolume;

/// All live sandboxes.
#[derive(Debug)]
pub(crate) struct SandboxRegistry {
    open: Mutex<HashMap<SandboxId, Arc<LiveSandbox>>>,
    /// Slots, including those of sandboxes that are being created or ended.
    slots: SharePool<TenantName>,
    max_sandboxes: usize,
}

/// The slot of one sandbox, with its volumes. Dropping it frees both.
#[derive(Debug)]
pub(super) struct SandboxSlot {
    _slot: ShareReservation<TenantName>,
    pub(super) mounts: Vec<MountedVolume>,
    /// Its part of the disk quota, if its disk is in a file.
    pub(super) disk: Option<HeldDisk>,
}

impl SandboxRegistry {
    /// Creates a registry for `most` sandboxes, and a quarter more in reserve.
    pub(crate) fn new(most: usize, other_tenants: &OtherTenants) -> Self {
        let shares = FairShare::with_reserve_on_top(most as u64);
        Self {
            open: Mutex::default(),
            slots: SharePool::new(ShareKind::Sandboxes, shares, other_tenants),
            max_sandboxes: most,
        }
    }

    /// Takes a slot for a tenant that may have `quota` sandboxes.
    pub(super) fn reserve(&self, tenant: &TenantName, quota: Option<u32>) -> Result<SandboxSlot, Error> {
        let taken = self.slots.take(tenant, 1, quota.map(u64::from), Tenure::Lasting);
        let slot = taken.map_err(|refusal| match refusal {
            ShareRefusal::Cap(most) => Error::SandboxesFull(most as usize),
            ShareRefusal::Share(most) if most < self.max_sandboxes as u64 => self.slots.error(refusal),
            ShareRefusal::Share(_) | ShareRefusal::Full => Error::SandboxesFull(self.max_sandboxes),
        })?;
        Ok(SandboxSlot { _slot: slot, mounts: Vec::new(), disk: None })
    }

    pub(crate) fn share_refusals(&self) -> (&'static str, u64) {
        self.slots.share_refusals()
    }

    pub(super) fn insert(&self, open: &Arc<LiveSandbox>) {
        lock(&self.open).insert(open.id.clone(), Arc::clone(open));
    }

    pub(super) fn remove(&self, id: &SandboxId) {
        lock(&self.open).remove(id);
    }

    /// Returns a sandbox of this tenant.
    pub(crate) fn find(&self, tenant: &TenantName, id: &SandboxId) -> Option<Arc<LiveSandbox>> {
        lock(&self.open).get(id).filter(|open| open.tenant == *tenant).cloned()
    }

    /// Returns the sandboxes of a tenant.
    pub(crate) fn of_tenant(&self, tenant: &TenantName) -> Vec<Arc<LiveSandbox>> {
        lock(&self.open).values().filter(|open| open.tenant == *tenant).cloned().collect()
    }

    /// Returns the number of slots that a tenant holds, including those of sandboxes that are being created or
    /// ended.
    pub(crate) fn held_slots(&self, tenant: &TenantName) -> u64 {
        self.slots.held(tenant)
    }

    pub(crate) fn all(&self) -> Vec<Arc<LiveSandbox>> {
        lock(&self.open).values().cloned().collect()
    }
}

type SandboxTable = HashMap<SandboxId, Arc<LiveSandbox>>;

fn lock(table: &Mutex<SandboxTable>) -> MutexGuard<'_, SandboxTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_slots_are_limited() {
        let other_tenants = OtherTenants::default();
        let registry = SandboxRegistry::new(4, &other_tenants);
        let (a, b): (TenantName, TenantName) = ("a".parse().unwrap(), "b".parse().unwrap());
        let refused = |tenant, quota| registry.reserve(tenant, quota).unwrap_err().to_string();
        let all: Vec<_> = (0..4).map(|_| registry.reserve(&a, None).unwrap()).collect();
        assert_eq!(refused(&a, None), "Maximum number of sandboxes (4) reached");
        drop(all);
        other_tenants.set(true);
        let half: Vec<_> = (0..2).map(|_| registry.reserve(&a, None).unwrap()).collect();
        assert_eq!(
            refused(&a, None),
            "this tenant has reached its share of the sandboxes (2); close one, or ask an administrator for \
             a quota: belljar tenant quotas TENANT --sandboxes N"
        );
        assert_eq!(refused(&a, Some(1)), "Maximum number of sandboxes (1) reached");
        let third = registry.reserve(&a, Some(4)).unwrap();
        let theirs: Vec<_> = (0..2).map(|_| registry.reserve(&b, None).unwrap()).collect();
        drop((half, third, theirs));
        assert_eq!(registry.slots.used(), 0);
    }
}
