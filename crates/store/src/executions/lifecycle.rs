//! The life cycle of an execution: it begins, starts, and ends once.

use belljar_engine::report::Status;
use rusqlite::{Connection, OptionalExtension, params};

use super::metadata::index_metadata;
use super::{ExecutionOutcome, Idempotency, NewExecution, idempotency, status_column};
use crate::error::{Error, ObjectKind, map_missing_tenant};
use crate::id::ExecutionId;
use crate::name::TenantName;
use crate::size_limits::{self, MAX_WORD_BYTES};
use crate::store::Store;
use crate::time::Timestamp;
use crate::usage::{self, DailyUsage};

/// Bytes that an execution uses beside its result and metadata.
const ROW_BYTES: usize = 256;

/// Result of beginning an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BeginResult {
    /// The execution is recorded; run it.
    Fresh,
    /// An identical request is still running.
    InProgress(ExecutionId),
    /// An identical request has ended.
    Done(ExecutionId),
    /// A different request used this key.
    Conflict,
}

/// Result of finishing an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishResult {
    /// The end is recorded.
    Recorded,
    /// The execution had already ended, with this status.
    AlreadyFinished(Status),
}

impl Store {
    /// Records an execution as queued or running, unless its idempotency key was used before.
    ///
    /// # Errors
    /// The tenant does not exist, the metadata is too long, or the database cannot be written.
    pub async fn begin_execution(&self, new: NewExecution) -> Result<BeginResult, Error> {
        let fields = EncodedFields::encode(&new)?;
        self.write(move |db| {
            if let Some(idempotency) = &new.idempotency
                && let Some(known) = idempotency::find_earlier(db, &new.tenant, idempotency)?
            {
                return Ok(known);
            }
            insert(db, &new, &fields)?;
            Ok(BeginResult::Fresh)
        })
        .await
    }

    /// Returns what beginning an execution with this idempotency key would find, without recording anything.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn find_execution_of_key(
        &self,
        tenant: &TenantName,
        idempotency: Idempotency,
    ) -> Result<BeginResult, Error> {
        let tenant = tenant.clone();
        self.read(move |db| {
            Ok(idempotency::find_earlier(db, &tenant, &idempotency)?.unwrap_or(BeginResult::Fresh))
        })
        .await
    }

    /// Records that a queued execution is running.
    ///
    /// # Errors
    /// The execution is not queued, or the database cannot be written.
    pub async fn start_execution(
        &self,
        tenant: &TenantName,
        id: &ExecutionId,
        at: Timestamp,
    ) -> Result<(), Error> {
        let sql = "UPDATE executions SET status = 'running', started_ms = ?3 \
                   WHERE tenant = ?1 AND id = ?2 AND status = 'queued'";
        self.record_change(sql, (tenant.clone(), id.clone(), at), ObjectKind::Execution).await
    }

    /// Records the outcome of an execution and adds to its tenant's usage. Survives `kill -9` once it
    /// returns.
    ///
    /// # Errors
    /// The execution does not exist, or the database cannot be written; the call may be retried.
    pub async fn finish_execution(
        &self,
        tenant: &TenantName,
        id: &ExecutionId,
        finished: ExecutionOutcome,
    ) -> Result<FinishResult, Error> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.write_waiting(finished.json.len(), move |db| finish(db, &tenant, &id, &finished)).await
    }

    /// Records an execution that no one relied on before, together with its outcome.
    ///
    /// # Errors
    /// The tenant does not exist, the metadata is too long, or the database cannot be written; the call may
    /// be retried.
    pub async fn record_execution(
        &self,
        new: NewExecution,
        finished: ExecutionOutcome,
    ) -> Result<FinishResult, Error> {
        let fields = EncodedFields::encode(&new)?;
        self.write_waiting(finished.json.len(), move |db| {
            insert(db, &new, &fields)?;
            finish(db, &new.tenant, &new.id, &finished)
        })
        .await
    }

    /// Deletes an execution that could not be started, and frees its idempotency key for another attempt.
    ///
    /// # Errors
    /// No such execution is unfinished, or the database cannot be written.
    pub async fn abandon_execution(&self, tenant: &TenantName, id: &ExecutionId) -> Result<(), Error> {
        let sql = "DELETE FROM executions WHERE tenant = ? AND id = ? AND ended_ms IS NULL";
        self.record_change(sql, (tenant.clone(), id.clone()), ObjectKind::Execution).await
    }

    /// Deletes an execution that has ended, with its result. Its usage still counts, and its idempotency key is
    /// free for another request.
    ///
    /// # Errors
    /// The execution does not exist or has not ended, or the database cannot be written.
    pub async fn delete_execution(&self, tenant: &TenantName, id: &ExecutionId) -> Result<(), Error> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.write(move |db| {
            let sql = "DELETE FROM executions WHERE tenant = ? AND id = ? AND ended_ms IS NOT NULL";
            if db.prepare_cached(sql)?.execute(params![tenant, id])? > 0 {
                return Ok(());
            }
            already_finished(db, &tenant, &id)?;
            Err(Error::Unfinished(ObjectKind::Execution))
        })
        .await
    }

    /// Marks all executions that an earlier server left unfinished as interrupted, and returns how many. Call
    /// at startup.
    ///
    /// # Errors
    /// The database cannot be written.
    pub async fn interrupt_unfinished_executions(&self, at: Timestamp) -> Result<usize, Error> {
        self.write_waiting(0, move |db| {
            let unfinished = "DELETE FROM artifact_chunks WHERE seq IN \
                              (SELECT seq FROM executions WHERE ended_ms IS NULL)";
            db.execute(unfinished, [])?;
            let sql = "UPDATE executions SET status = 'interrupted', ended_ms = ?, \
                       size_bytes = ? + length(CAST(metadata AS BLOB)) WHERE ended_ms IS NULL";
            Ok(db.execute(sql, params![at, ROW_BYTES as i64])?)
        })
        .await
    }
}

/// Validated fields of a new execution, in their stored form.
struct EncodedFields {
    language: String,
    metadata: String,
}

impl EncodedFields {
    fn encode(new: &NewExecution) -> Result<Self, Error> {
        let metadata = size_limits::encode_metadata(&new.metadata)?;
        Ok(Self {
            language: size_limits::check_text("language", new.language.clone(), MAX_WORD_BYTES)?,
            metadata,
        })
    }
}

fn insert(db: &Connection, new: &NewExecution, fields: &EncodedFields) -> Result<(), Error> {
    let EncodedFields { language, metadata } = fields;
    let status = new.started.map_or(Status::Queued, |_| Status::Running).name();
    let (key, request) = match &new.idempotency {
        Some(idempotency) => (Some(&idempotency.key), Some(&idempotency.request)),
        None => (None, None),
    };
    let sql = "INSERT INTO executions (tenant, id, status, language, metadata, created_ms, started_ms, \
               idempotency_key, request_digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let values =
        params![new.tenant, new.id, status, language, metadata, new.created, new.started, key, request];
    db.prepare_cached(sql)?.execute(values).map_err(map_missing_tenant)?;
    index_metadata(db, new, db.last_insert_rowid(), metadata)
}

fn finish(
    db: &Connection,
    tenant: &TenantName,
    id: &ExecutionId,
    finished: &ExecutionOutcome,
) -> Result<FinishResult, Error> {
    let cpu = size_limits::to_sql_integer("cpu_ms", finished.cpu_ms)?;
    let size = (finished.size() + ROW_BYTES) as i64;
    let sql = "UPDATE executions SET status = ?3, exit_code = ?4, cpu_ms = ?5, ended_ms = ?6, \
               size_bytes = ?7 + length(CAST(metadata AS BLOB)) \
               WHERE tenant = ?1 AND id = ?2 AND ended_ms IS NULL RETURNING seq";
    let values = params![tenant, id, finished.status.name(), finished.exit_code, cpu, finished.ended, size];
    let seq: Option<i64> = db.prepare_cached(sql)?.query_row(values, |row| row.get(0)).optional()?;
    let Some(seq) = seq else { return already_finished(db, tenant, id) };
    db.prepare_cached("INSERT INTO results (seq, json) VALUES (?, ?)")?
        .execute(params![seq, finished.json])?;
    let used = DailyUsage { cpu_ms: finished.cpu_ms, executions: 1 };
    usage::add(db, tenant, finished.ended.day(), used)?;
    Ok(FinishResult::Recorded)
}

fn already_finished(db: &Connection, tenant: &TenantName, id: &ExecutionId) -> Result<FinishResult, Error> {
    let sql = "SELECT status FROM executions WHERE tenant = ? AND id = ?";
    let status = db.query_row(sql, params![tenant, id], |row| status_column(row, 0)).optional()?;
    status.map(FinishResult::AlreadyFinished).ok_or(Error::NotFound(ObjectKind::Execution))
}
