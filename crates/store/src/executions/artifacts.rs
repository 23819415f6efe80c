//! Artifacts that are stored beside the result of their execution, and deleted with it.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{Error, ObjectKind, require_changed_row};
use crate::id::ExecutionId;
use crate::name::TenantName;
use crate::store::Store;

/// Size of a chunk. Other writes run between two chunks.
const CHUNK_BYTES: usize = 1 << 20;

/// An artifact to store.
#[derive(Debug, Clone)]
pub struct NewArtifact {
    /// Path below `./artifacts`.
    pub path: String,
    /// Media type.
    pub media_type: &'static str,
    /// Content.
    pub content: Vec<u8>,
}

/// A stored artifact, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredArtifact {
    /// Media type.
    pub media_type: String,
    /// Size in bytes.
    pub size: u64,
}

impl Store {
    /// Stores artifacts of a recorded execution that is about to finish. They cannot be read before it has.
    ///
    /// # Errors
    /// The execution does not exist, or the database cannot be written; the call may be retried.
    pub async fn add_artifacts(
        &self,
        tenant: &TenantName,
        id: &ExecutionId,
        artifacts: &Arc<[NewArtifact]>,
    ) -> Result<(), Error> {
        for (index, artifact) in artifacts.iter().enumerate() {
            // An empty artifact has one empty chunk.
            for number in 0..artifact.content.len().div_ceil(CHUNK_BYTES).max(1) {
                let (tenant, id, artifacts) = (tenant.clone(), id.clone(), Arc::clone(artifacts));
                let chunk = move |db: &Connection| add_chunk(db, &tenant, &id, &artifacts[index], number);
                self.write_waiting(CHUNK_BYTES, chunk).await?;
            }
        }
        Ok(())
    }

    /// Returns an artifact of a finished execution, or `None` for an unknown one or another tenant's.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn artifact(
        &self,
        tenant: &TenantName,
        id: &ExecutionId,
        path: &str,
    ) -> Result<Option<StoredArtifact>, Error> {
        let sql = "SELECT c.media_type, sum(length(c.bytes)) FROM executions e JOIN artifact_chunks c ON c.seq = e.seq \
                   WHERE e.tenant = ? AND e.id = ? AND e.ended_ms IS NOT NULL AND c.path = ? GROUP BY c.path";
        let values = (tenant.clone(), id.clone(), path.to_owned());
        self.row(sql, values, |row| {
            Ok(StoredArtifact { media_type: row.get(0)?, size: row.get::<_, i64>(1)?.unsigned_abs() })
        })
        .await
    }

    /// Returns a chunk of an artifact, or `None` after the last one.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn artifact_chunk(
        &self,
        tenant: &TenantName,
        id: &ExecutionId,
        path: &str,
        number: u64,
    ) -> Result<Option<Vec<u8>>, Error> {
        let sql = "SELECT c.bytes FROM executions e JOIN artifact_chunks c ON c.seq = e.seq \
                   WHERE e.tenant = ? AND e.id = ? AND e.ended_ms IS NOT NULL AND c.path = ? AND c.number = ?";
        let values = (tenant.clone(), id.clone(), path.to_owned(), number.cast_signed());
        self.row(sql, values, |row| row.get(0)).await
    }
}

fn add_chunk(
    db: &Connection,
    tenant: &TenantName,
    id: &ExecutionId,
    artifact: &NewArtifact,
    number: usize,
) -> Result<(), Error> {
    let first = number * CHUNK_BYTES;
    let bytes = &artifact.content[first..artifact.content.len().min(first + CHUNK_BYTES)];
    let sql = "INSERT OR REPLACE INTO artifact_chunks (seq, path, number, media_type, bytes) \
               SELECT seq, ?3, ?4, ?5, ?6 FROM executions WHERE tenant = ?1 AND id = ?2 AND ended_ms IS NULL";
    let values = params![tenant, id, artifact.path, number as i64, artifact.media_type, bytes];
    if db.prepare_cached(sql)?.execute(values)? > 0 || has_ended(db, tenant, id)? {
        return Ok(());
    }
    require_changed_row(0, Error::NotFound(ObjectKind::Execution))
}

/// Returns whether an execution has ended: then an earlier attempt has stored all of its artifacts.
fn has_ended(db: &Connection, tenant: &TenantName, id: &ExecutionId) -> Result<bool, Error> {
    let sql = "SELECT 1 FROM executions WHERE tenant = ? AND id = ? AND ended_ms IS NOT NULL";
    let ended: Option<i64> = db.query_row(sql, params![tenant, id], |row| row.get(0)).optional()?;
    Ok(ended.is_some())
}
