//! Deletion of tenants with everything that they own.
//!
//! ```text
//! begin ─▶ marked, its keys are refused ─step─▶ … ─step─▶ all records deleted at once with the tenant
//! ```
//!
//! Executions and sandboxes are deleted in small steps, so that other writes can run in between. The tenant keeps
//! its mark until the last step, so a deletion that a crash interrupts is found and continued at the next start.

use rusqlite::types::FromSql;
use rusqlite::{Connection, params};

use crate::error::{Error, ObjectKind};
use crate::id::{SnapshotId, VolumeId};
use crate::name::TenantName;
use crate::retention::{self, MAX_STEP_ROWS, PruneSummary};
use crate::store::Store;
use crate::tenants;
use crate::time::Timestamp;

/// Records that a step deleted. The files of its volumes and snapshots are left for the caller to remove.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeletedRecords {
    /// Number of executions.
    pub executions: u64,
    /// Number of sandboxes.
    pub sandboxes: u64,
    /// Ids of the volumes.
    pub volumes: Vec<VolumeId>,
    /// Ids of the snapshots.
    pub snapshots: Vec<SnapshotId>,
}

/// Result of one step of a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantDeletionStep {
    /// More is left.
    More(DeletedRecords),
    /// The tenant is deleted.
    Last(DeletedRecords),
    /// No tenant of this name is being deleted, for example because another caller has completed the deletion.
    NotBeingDeleted,
}

impl Store {
    /// Marks a tenant as being deleted. From then on its keys are refused.
    ///
    /// # Errors
    /// The tenant does not exist.
    pub async fn begin_tenant_deletion(&self, name: &TenantName, at: Timestamp) -> Result<(), Error> {
        let sql = "UPDATE tenants SET disabled_ms = coalesce(disabled_ms, ?2), \
                   deleting_ms = coalesce(deleting_ms, ?2) WHERE name = ?1";
        self.change_row(sql, (name.clone(), at), ObjectKind::Tenant).await
    }

    /// Deletes some records of a tenant that is being deleted, at last the tenant itself. Its executions and
    /// sandboxes must have ended, because their ends could no longer be recorded.
    ///
    /// # Errors
    /// The database cannot be written.
    pub async fn delete_tenant_step(&self, name: &TenantName) -> Result<TenantDeletionStep, Error> {
        let name = name.clone();
        self.write_waiting(0, move |db| delete_step(db, &name)).await
    }
}

fn delete_step(db: &Connection, name: &TenantName) -> Result<TenantDeletionStep, Error> {
    if tenants::find(db, name)?.is_none_or(|tenant| tenant.deleting.is_none()) {
        return Ok(TenantDeletionStep::NotBeingDeleted);
    }
    let mut deleted =
        DeletedRecords { executions: delete_executions(db, name)?, ..DeletedRecords::default() };
    if deleted.executions > 0 {
        return Ok(TenantDeletionStep::More(deleted));
    }
    deleted.sandboxes = delete_sandboxes(db, name)?;
    if deleted.sandboxes > 0 {
        return Ok(TenantDeletionStep::More(deleted));
    }
    deleted.volumes = delete_returning(db, "DELETE FROM volumes WHERE tenant = ? RETURNING id", name)?;
    deleted.snapshots = delete_returning(db, "DELETE FROM snapshots WHERE tenant = ? RETURNING id", name)?;
    for sql in [
        "DELETE FROM keys WHERE tenant = ?",
        "DELETE FROM usage WHERE tenant = ?",
        "DELETE FROM tenants WHERE name = ?",
    ] {
        db.execute(sql, [name])?;
    }
    Ok(TenantDeletionStep::Last(deleted))
}

fn delete_executions(db: &Connection, name: &TenantName) -> Result<u64, Error> {
    let sql = "SELECT seq, size_bytes FROM executions WHERE tenant = ? ORDER BY id LIMIT ?";
    let rows = retention::find_candidates(db, sql, params![name, MAX_STEP_ROWS])?;
    let mut deleted = PruneSummary::default();
    retention::delete_executions(db, &rows, i64::MAX, &mut deleted)?;
    Ok(deleted.executions)
}

fn delete_sandboxes(db: &Connection, name: &TenantName) -> Result<u64, Error> {
    let sql = "DELETE FROM sandboxes WHERE tenant = ?1 AND id IN \
               (SELECT id FROM sandboxes WHERE tenant = ?1 LIMIT ?2)";
    Ok(db.execute(sql, params![name, MAX_STEP_ROWS])? as u64)
}

fn delete_returning<T: FromSql>(db: &Connection, sql: &str, name: &TenantName) -> Result<Vec<T>, Error> {
    let mut statement = db.prepare(sql)?;
    Ok(statement.query_map([name], |row| row.get(0))?.collect::<Result<_, _>>()?)
}
