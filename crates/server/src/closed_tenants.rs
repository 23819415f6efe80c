//! Tenants whose deletion is in progress: no new work of theirs starts, not even by a request that was
//! authenticated before the deletion began.
//!
//! Work registers itself first and checks this table afterwards. A deletion closes the tenant first and looks for
//! registered work afterwards. So either the work sees that the tenant is closed, or the deletion sees the work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_store::{Error as StoreError, ObjectKind, TenantName};

use crate::error::Error;

/// The closed tenants, with the number of deletions that close each.
#[derive(Debug, Default)]
pub(crate) struct ClosedTenants(Arc<Mutex<HashMap<TenantName, usize>>>);

/// Keeps a tenant closed until dropped.
#[derive(Debug)]
pub(crate) struct TenantClosure {
    table: Arc<Mutex<HashMap<TenantName, usize>>>,
    tenant: TenantName,
}

impl ClosedTenants {
    /// Closes a tenant.
    pub(crate) fn close(&self, tenant: &TenantName) -> TenantClosure {
        *lock(&self.0).entry(tenant.clone()).or_default() += 1;
        TenantClosure { table: Arc::clone(&self.0), tenant: tenant.clone() }
    }

    /// Refuses new work of a closed tenant. Call after the work is registered.
    pub(crate) fn check(&self, tenant: &TenantName) -> Result<(), Error> {
        match lock(&self.0).contains_key(tenant) {
            true => Err(StoreError::BeingDeleted(ObjectKind::Tenant).into()),
            false => Ok(()),
        }
    }
}

impl Drop for TenantClosure {
    fn drop(&mut self) {
        let mut table = lock(&self.table);
        if let Some(count) = table.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                table.remove(&self.tenant);
            }
        }
    }
}

fn lock(table: &Mutex<HashMap<TenantName, usize>>) -> MutexGuard<'_, HashMap<TenantName, usize>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_closed_until_its_last_deletion_ends() {
        let (closed, ada): (_, TenantName) = (ClosedTenants::default(), "ada".parse().unwrap());
        let deletions = [closed.close(&ada), closed.close(&ada)];
        for deletion in deletions {
            assert_eq!(closed.check(&ada).unwrap_err().to_string(), "the tenant is being deleted");
            closed.check(&"bob".parse().unwrap()).unwrap();
            drop(deletion);
        }
        closed.check(&ada).unwrap();
    }
}
