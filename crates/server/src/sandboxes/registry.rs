//! Which sandboxes are alive, and how many there may be.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_store::{SandboxId, TenantName};

use super::open::Open;
use crate::error::Error;
use crate::places::Mount;

/// All that are alive.
#[derive(Debug)]
pub(crate) struct Registry(Arc<Mutex<Table>>);

#[derive(Debug)]
struct Table {
    open: HashMap<SandboxId, Arc<Open>>,
    /// Places taken, those of sandboxes that are being made or ended included.
    taken: HashMap<TenantName, usize>,
    total: usize,
    most: usize,
}

/// Room for one sandbox, and the volumes that it sees; given back when dropped.
#[derive(Debug)]
pub(super) struct Room {
    table: Arc<Mutex<Table>>,
    tenant: TenantName,
    pub(super) mounts: Vec<Mount>,
}

impl Registry {
    /// So many at one time.
    pub(crate) fn new(most: usize) -> Self {
        let (open, taken) = (HashMap::new(), HashMap::new());
        Self(Arc::new(Mutex::new(Table { open, taken, total: 0, most })))
    }

    /// Takes room for one of a tenant that may have `quota`.
    pub(super) fn reserve(&self, tenant: &TenantName, quota: Option<u32>) -> Result<Room, Error> {
        let mut table = lock(&self.0);
        let own = table.taken.get(tenant).copied().unwrap_or_default();
        if let Some(quota) = quota.map(|quota| quota as usize).filter(|quota| own >= *quota) {
            return Err(Error::SandboxesFull(quota));
        }
        if table.total >= table.most {
            return Err(Error::SandboxesFull(table.most));
        }
        table.total += 1;
        *table.taken.entry(tenant.clone()).or_default() += 1;
        Ok(Room { table: Arc::clone(&self.0), tenant: tenant.clone(), mounts: Vec::new() })
    }

    pub(super) fn insert(&self, open: &Arc<Open>) {
        lock(&self.0).open.insert(open.id.clone(), Arc::clone(open));
    }

    pub(super) fn remove(&self, id: &SandboxId) {
        lock(&self.0).open.remove(id);
    }

    /// A tenant's own; another's is not there.
    pub(crate) fn find(&self, tenant: &TenantName, id: &SandboxId) -> Option<Arc<Open>> {
        lock(&self.0).open.get(id).filter(|open| open.tenant == *tenant).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Open>> {
        lock(&self.0).open.values().cloned().collect()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut table = lock(&self.table);
        table.total -= 1;
        if let Some(own) = table.taken.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                table.taken.remove(&self.tenant);
            }
        }
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many() {
        let registry = Registry::new(2);
        let (a, b): (TenantName, TenantName) = ("a".parse().unwrap(), "b".parse().unwrap());
        let first = registry.reserve(&a, Some(1)).unwrap();
        let refused = |tenant, quota| registry.reserve(tenant, quota).unwrap_err().to_string();
        assert_eq!(refused(&a, Some(1)), "Maximum number of sandboxes (1) reached");
        let second = registry.reserve(&b, None).unwrap();
        assert_eq!(refused(&b, Some(9)), "Maximum number of sandboxes (2) reached");
        drop(first);
        drop((registry.reserve(&a, Some(1)).unwrap(), second));
        assert!(lock(&registry.0).taken.is_empty() && lock(&registry.0).total == 0);
    }
}
