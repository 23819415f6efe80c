//! Deletes tenants with everything that they own.
//!
//! ```text
//! begin: recorded, keys are refused ─▶ new work is refused ─▶ executions are canceled, sandboxes are ended
//!   ─▶ caches are removed ─▶ records are deleted in small steps, the tenant last ─▶ files are removed ─▶ audit entry
//! ```
//!
//! If the server dies in between, the next one continues. The audit log keeps its entries about the tenant.

use std::sync::Arc;
use std::time::Duration;

use belljar_store::{AuditEntry, AuditOutcome, DeletedRecords, TenantDeletionStep, TenantName, Timestamp};
use futures_util::future::join_all;
use tokio::time::sleep;

use crate::app_state::AppState;
use crate::error::Error;
use crate::sandboxes::end_cause::EndCause;
use crate::sandboxes::lifecycle;
use crate::storage;

/// Interval at which work that is being ended is looked at again. Ending it triggers no single event.
const RECHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Actor of the audit entries: the server itself, which may complete a deletion after a restart.
const ACTOR: &str = "server";
const ACTION: &str = "tenant.removed";

/// Marks a tenant as being deleted, which refuses its keys.
pub(crate) async fn begin(state: &AppState, tenant: &TenantName) -> Result<(), Error> {
    // Callers without a key in the database belong to this tenant.
    if state.authenticator.is_default_tenant(tenant) {
        return Err(Error::DefaultTenant);
    }
    Ok(state.store.begin_tenant_deletion(tenant, Timestamp::now()).await?)
}

/// Completes the deletion of a tenant. May run more than once at the same time.
pub(crate) async fn complete(state: &Arc<AppState>, tenant: &TenantName) -> Result<(), Error> {
    let closure = state.closed_tenants.close(tenant);
    // Before executions are canceled, so that clients learn why.
    state.connection_handles.close_invalid(&state.store).await;
    end_work(state, tenant).await;
    if let Err(error) = state.engine.remove_tenant_caches(tenant.as_str()).await {
        tracing::warn!(%tenant, %error, "cannot remove all cached packages and programs of a deleted tenant now");
    }
    let Some(deleted) = delete_records(state, tenant).await? else { return Ok(()) };
    drop(closure);
    for volume in &deleted.volumes {
        storage::volumes::remove_files(state, volume).await;
    }
    for snapshot in &deleted.snapshots {
        storage::snapshots::remove_file(state, snapshot).await;
    }
    Ok(state.store.audit(audit_entry(tenant, &deleted)).await?)
}

/// Completes the deletions that an earlier server began.
pub(crate) async fn complete_interrupted(state: Arc<AppState>) {
    let tenants = match state.store.tenants().await {
        Ok(tenants) => tenants,
        Err(error) => return tracing::warn!(%error, "cannot look for tenants whose deletion was interrupted"),
    };
    for tenant in tenants.into_iter().filter(|tenant| tenant.deleting.is_some()) {
        tracing::warn!(tenant = %tenant.name, "continuing the deletion of a tenant");
        if let Err(error) = complete(&state, &tenant.name).await {
            tracing::error!(tenant = %tenant.name, %error, "cannot delete a tenant; delete it again");
        }
    }
}

/// Cancels all executions, ends all sandboxes, and waits until nothing of the tenant is left.
async fn end_work(state: &Arc<AppState>, tenant: &TenantName) {
    loop {
        let running = state.live_executions.cancel_tenant(tenant);
        let open = state.sandboxes.of_tenant(tenant);
        join_all(open.iter().map(|open| lifecycle::end(state, open, EndCause::tenant_deleted()))).await;
        // Includes sandboxes that are being created.
        if running == 0 && state.sandboxes.held_slots(tenant) == 0 {
            return;
        }
        sleep(RECHECK_INTERVAL).await;
    }
}

/// Deletes all records; returns `None` if another caller has completed the deletion.
async fn delete_records(state: &AppState, tenant: &TenantName) -> Result<Option<DeletedRecords>, Error> {
    let mut deleted = DeletedRecords::default();
    loop {
        let (step, is_last) = match state.store.delete_tenant_step(tenant).await? {
            TenantDeletionStep::More(step) => (step, false),
            TenantDeletionStep::Last(step) => (step, true),
            TenantDeletionStep::NotBeingDeleted => return Ok(None),
        };
        deleted.executions += step.executions;
        deleted.sandboxes += step.sandboxes;
        deleted.volumes.extend(step.volumes);
        deleted.snapshots.extend(step.snapshots);
        if is_last {
            return Ok(Some(deleted));
        }
    }
}

fn audit_entry(tenant: &TenantName, deleted: &DeletedRecords) -> AuditEntry {
    let DeletedRecords { executions, sandboxes, volumes, snapshots } = deleted;
    let (volumes, snapshots) = (volumes.len(), snapshots.len());
    tracing::info!(%tenant, executions, sandboxes, volumes, snapshots, "deleted a tenant");
    AuditEntry {
        at: Timestamp::now(),
        actor: ACTOR.to_owned(),
        tenant: None,
        action: ACTION.to_owned(),
        target: Some(tenant.to_string()),
        outcome: AuditOutcome::Done,
        request_id: None,
        detail: Some(format!(
            "executions={executions} sandboxes={sandboxes} volumes={volumes} snapshots={snapshots}"
        )),
    }
}
