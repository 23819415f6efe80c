//! Volumes and snapshots: their owners and sizes. Other code manages their files.

use rusqlite::{Connection, Row, params};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{Error, ObjectKind, map_missing_tenant, require_changed_row};
use crate::id::{SandboxId, SnapshotId, VolumeId};
use crate::name::{TenantName, VolumeName};
use crate::size_limits::{self, MAX_WORD_BYTES};
use crate::store::Store;
use crate::time::Timestamp;

/// Maximum number of volumes, and of snapshots, of one tenant.
const MAX_PER_TENANT: i64 = 1_000;

/// A named directory that outlives sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Volume {
    /// Owner of the volume.
    #[serde(skip)]
    pub tenant: TenantName,
    /// Name of the volume.
    pub name: VolumeName,
    /// Name of the volume's directory.
    #[serde(skip)]
    pub id: VolumeId,
    /// Maximum size in bytes. Sandboxes that exceed it are halted until files are removed.
    pub size_bytes: u64,
    /// Creation time in milliseconds since 1970.
    pub created: Timestamp,
}

/// A copy of a sandbox's files at one moment. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Snapshot {
    /// Owner of the snapshot.
    #[serde(skip)]
    pub tenant: TenantName,
    /// Snapshot id.
    pub id: SnapshotId,
    /// Id of the sandbox it was taken from.
    pub sandbox: SandboxId,
    /// Label for people.
    pub label: String,
    /// Size in bytes; while it is being created, the size reserved for it.
    pub size_bytes: u64,
    /// Creation time.
    pub created: Timestamp,
    /// Completion time; null while it is being created.
    pub ready: Option<Timestamp>,
}

const VOLUME_COLUMNS: &str = "tenant, name, id, size_bytes, created_ms";
const SNAPSHOT_COLUMNS: &str = "tenant, id, sandbox, label, size_bytes, created_ms, ready_ms";

impl Store {
    /// Records a volume and reserves its size from the tenant's `quota`.
    ///
    /// # Errors
    /// The name is taken, the tenant does not exist or has 1,000 volumes, or its quota is exceeded.
    pub async fn add_volume(&self, volume: Volume, quota: u64) -> Result<(), Error> {
        let size = size_limits::to_sql_integer("size_bytes", volume.size_bytes)?;
        self.write(move |db| {
            check_count(db, "SELECT count(*) FROM volumes WHERE tenant = ?", &volume.tenant)?;
            let left = remaining_quota(db, quota, &volume.tenant)?;
            if volume.size_bytes > left {
                return Err(Error::Quota { left });
            }
            let sql = "INSERT INTO volumes (tenant, name, id, size_bytes, created_ms) VALUES (?, ?, ?, ?, ?) \
                       ON CONFLICT DO NOTHING";
            let values = params![volume.tenant, volume.name, volume.id, size, volume.created];
            require_changed_row(
                db.execute(sql, values).map_err(map_missing_tenant)?,
                Error::Exists(ObjectKind::Volume),
            )
        })
        .await
    }

    /// Returns a tenant's volumes, ordered by name.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn volumes(&self, tenant: &TenantName) -> Result<Vec<Volume>, Error> {
        let sql = format!("SELECT {VOLUME_COLUMNS} FROM volumes WHERE tenant = ? ORDER BY name");
        self.rows(sql, [tenant.clone()], volume_from_row).await
    }

    /// Returns a tenant's volume, or `None` for an unknown name or another tenant's volume.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn volume(&self, tenant: &TenantName, name: &VolumeName) -> Result<Option<Volume>, Error> {
        let sql = format!("SELECT {VOLUME_COLUMNS} FROM volumes WHERE tenant = ? AND name = ?");
        self.row(sql, (tenant.clone(), name.clone()), volume_from_row).await
    }

    /// Deletes the record of a volume.
    ///
    /// # Errors
    /// The volume does not exist.
    pub async fn remove_volume(&self, tenant: &TenantName, name: &VolumeName) -> Result<(), Error> {
        let sql = "DELETE FROM volumes WHERE tenant = ? AND name = ?";
        self.change_row(sql, (tenant.clone(), name.clone()), ObjectKind::Volume).await
    }

    /// Returns the sum of a tenant's volume and snapshot sizes.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn reserved_bytes(&self, tenant: &TenantName) -> Result<u64, Error> {
        let tenant = tenant.clone();
        self.read(move |db| sum_reserved_bytes(db, &tenant)).await
    }

    /// Records a snapshot that is being made, and returns its maximum size: `size_bytes`, or what is left of
    /// `quota` if that is less. The maximum is reserved until [`Store::mark_snapshot_ready`] records the
    /// actual size.
    ///
    /// # Errors
    /// The tenant does not exist or has 1,000 snapshots, its quota is used up, or the label is too long.
    pub async fn add_snapshot(&self, snapshot: Snapshot, quota: u64) -> Result<u64, Error> {
        let label = size_limits::check_text("label", snapshot.label.clone(), MAX_WORD_BYTES)?;
        self.write(move |db| {
            let Snapshot { tenant, id, sandbox, created, .. } = &snapshot;
            check_count(db, "SELECT count(*) FROM snapshots WHERE tenant = ?", tenant)?;
            let left = remaining_quota(db, quota, tenant)?;
            let most = snapshot.size_bytes.min(left);
            if most == 0 {
                return Err(Error::Quota { left });
            }
            let sql = "INSERT INTO snapshots (tenant, id, sandbox, label, size_bytes, created_ms) \
                       VALUES (?, ?, ?, ?, ?, ?)";
            let values = params![
                tenant,
                id,
                sandbox,
                label,
                size_limits::to_sql_integer("size_bytes", most)?,
                created
            ];
            db.execute(sql, values).map_err(map_missing_tenant)?;
            Ok(most)
        })
        .await
    }

    /// Returns the ids of all volumes and all snapshots, of every tenant.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn volume_and_snapshot_ids(&self) -> Result<(Vec<VolumeId>, Vec<SnapshotId>), Error> {
        self.read(|db| {
            let mut volumes = db.prepare("SELECT id FROM volumes")?;
            let mut snapshots = db.prepare("SELECT id FROM snapshots")?;
            let volumes = volumes.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
            let snapshots = snapshots.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
            Ok((volumes, snapshots))
        })
        .await
    }

    /// Records that a snapshot is complete.
    ///
    /// # Errors
    /// No such snapshot is being made.
    pub async fn mark_snapshot_ready(
        &self,
        tenant: &TenantName,
        id: &SnapshotId,
        size_bytes: u64,
        at: Timestamp,
    ) -> Result<(), Error> {
        let size = size_limits::to_sql_integer("size_bytes", size_bytes)?;
        let sql = "UPDATE snapshots SET size_bytes = ?3, ready_ms = ?4 \
                   WHERE tenant = ?1 AND id = ?2 AND ready_ms IS NULL";
        self.record_change(sql, (tenant.clone(), id.clone(), size, at), ObjectKind::Snapshot).await
    }

    /// Returns a tenant's snapshots, newest first, including those being made.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn snapshots(&self, tenant: &TenantName) -> Result<Vec<Snapshot>, Error> {
        let sql = format!("SELECT {SNAPSHOT_COLUMNS} FROM snapshots WHERE tenant = ? ORDER BY id DESC");
        self.rows(sql, [tenant.clone()], snapshot_from_row).await
    }

    /// Returns a tenant's snapshot, or `None` for an unknown id or another tenant's snapshot.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn snapshot(&self, tenant: &TenantName, id: &SnapshotId) -> Result<Option<Snapshot>, Error> {
        let sql = format!("SELECT {SNAPSHOT_COLUMNS} FROM snapshots WHERE tenant = ? AND id = ?");
        self.row(sql, (tenant.clone(), id.clone()), snapshot_from_row).await
    }

    /// Deletes the record of a snapshot.
    ///
    /// # Errors
    /// The snapshot does not exist.
    pub async fn remove_snapshot(&self, tenant: &TenantName, id: &SnapshotId) -> Result<(), Error> {
        let sql = "DELETE FROM snapshots WHERE tenant = ? AND id = ?";
        self.change_row(sql, (tenant.clone(), id.clone()), ObjectKind::Snapshot).await
    }

    /// Deletes the records of snapshots that an earlier server did not complete, and returns their ids. Call
    /// at startup.
    ///
    /// # Errors
    /// The database cannot be written.
    pub async fn delete_unfinished_snapshots(&self) -> Result<Vec<SnapshotId>, Error> {
        self.write_waiting(0, |db| {
            let mut statement = db.prepare("DELETE FROM snapshots WHERE ready_ms IS NULL RETURNING id")?;
            Ok(statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?)
        })
        .await
    }
}

/// Returns how many bytes of its quota a tenant has left.
fn remaining_quota(db: &Connection, quota: u64, tenant: &TenantName) -> Result<u64, Error> {
    Ok(quota.saturating_sub(sum_reserved_bytes(db, tenant)?))
}

pub(crate) fn sum_reserved_bytes(db: &Connection, tenant: &TenantName) -> Result<u64, Error> {
    // `total` sums floating-point numbers, so it cannot overflow, and it is exact enough for any real disk
    // size.
    let sql = "SELECT total(size_bytes) FROM (SELECT size_bytes FROM volumes WHERE tenant = ?1 \
               UNION ALL SELECT size_bytes FROM snapshots WHERE tenant = ?1)";
    Ok(db.prepare_cached(sql)?.query_row([tenant], |row| row.get::<_, f64>(0))? as u64)
}

fn check_count(db: &Connection, count: &str, tenant: &TenantName) -> Result<(), Error> {
    let count: i64 = db.query_row(count, [tenant], |row| row.get(0))?;
    if count < MAX_PER_TENANT {
        return Ok(());
    }
    Err(Error::invalid("tenant", format!("already has {MAX_PER_TENANT} of these; remove some")))
}

fn volume_from_row(row: &Row<'_>) -> rusqlite::Result<Volume> {
    Ok(Volume {
        tenant: row.get(0)?,
        name: row.get(1)?,
        id: row.get(2)?,
        size_bytes: row.get::<_, i64>(3)?.unsigned_abs(),
        created: row.get(4)?,
    })
}

fn snapshot_from_row(row: &Row<'_>) -> rusqlite::Result<Snapshot> {
    Ok(Snapshot {
        tenant: row.get(0)?,
        id: row.get(1)?,
        sandbox: row.get(2)?,
        label: row.get(3)?,
        size_bytes: row.get::<_, i64>(4)?.unsigned_abs(),
        created: row.get(5)?,
        ready: row.get(6)?,
    })
}
