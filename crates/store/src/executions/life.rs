//! The life cycle of an execution: it begins, starts, and ends once.

use rusqlite::{Connection, OptionalExtension, params};

use super::metadata::index_metadata;
use super::{Finished, NewExecution, Status, idempotency};
use crate::bound::{self, MAX_WORD};
use crate::error::{Error, Kind, changed, owner_missing};
use crate::id::ExecutionId;
use crate::name::TenantName;
use crate::store::Store;
use crate::time::Timestamp;
use crate::usage::{self, Usage};

/// Bytes that an execution uses beside its result and metadata.
const ROW: usize = 256;

/// Result of beginning an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
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
pub enum Finish {
    /// The end is recorded.
    Recorded,
    /// The execution had already ended, with this status.
    Already(Status),
}

impl Store {
    /// Records an execution as queued or running, unless its idempotency key was used before.
    ///
    /// # Errors
    /// The tenant does not exist, the metadata is too long, or the database cannot be written.
    pub async fn begin_execution(&self, new: NewExecution) -> Result<Begun, Error> {
        let words = Words::of(&new)?;
        self.write(move |db| {
            if let Some(idempotency) = &new.idempotency
                && let Some(known) = idempotency::known(db, &new.tenant, idempotency)?
            {
                return Ok(known);
            }
            insert(db, &new, &words)?;
            Ok(Begun::Fresh)
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
        let (tenant, id) = (tenant.clone(), id.clone());
        self.record(0, move |db| {
            let sql = "UPDATE executions SET status = 'running', started_ms = ?3 \
                       WHERE tenant = ?1 AND id = ?2 AND status = 'queued'";
            let started = db.prepare_cached(sql)?.execute(params![tenant, id, at])?;
            changed(started, Error::NotFound(Kind::Execution))
        })
        .await
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
        finished: Finished,
    ) -> Result<Finish, Error> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.record(finished.json.len(), move |db| finish(db, &tenant, &id, &finished)).await
    }

    /// Records an execution that no one relied on before, together with its outcome.
    ///
    /// # Errors
    /// The tenant does not exist, the metadata is too long, or the database cannot be written; the call may
    /// be retried.
    pub async fn record_execution(&self, new: NewExecution, finished: Finished) -> Result<Finish, Error> {
        let words = Words::of(&new)?;
        self.record(finished.json.len(), move |db| {
            insert(db, &new, &words)?;
            finish(db, &new.tenant, &new.id, &finished)
        })
        .await
    }

    /// Deletes an execution that could not be started, and frees its idempotency key for another attempt.
    ///
    /// # Errors
    /// No such execution is unfinished, or the database cannot be written.
    pub async fn abandon_execution(&self, tenant: &TenantName, id: &ExecutionId) -> Result<(), Error> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.record(0, move |db| {
            let sql = "DELETE FROM executions WHERE tenant = ? AND id = ? AND ended_ms IS NULL";
            changed(db.execute(sql, params![tenant, id])?, Error::NotFound(Kind::Execution))
        })
        .await
    }

    /// Marks all executions that an earlier server left unfinished as interrupted, and returns how many. Call
    /// at startup.
    ///
    /// # Errors
    /// The database cannot be written.
    pub async fn interrupt_unfinished(&self, at: Timestamp) -> Result<usize, Error> {
        self.record(0, move |db| {
            let sql = "UPDATE executions SET status = 'interrupted', ended_ms = ?, \
                       size_bytes = ? + length(CAST(metadata AS BLOB)) WHERE ended_ms IS NULL";
            Ok(db.execute(sql, params![at, ROW as i64])?)
        })
        .await
    }
}

/// Validated fields of a new execution, in their stored form.
struct Words {
    language: String,
    metadata: String,
}

impl Words {
    fn of(new: &NewExecution) -> Result<Self, Error> {
        let metadata = bound::metadata(&new.metadata)?;
        Ok(Self { language: bound::text("language", new.language.clone(), MAX_WORD)?, metadata })
    }
}

fn insert(db: &Connection, new: &NewExecution, words: &Words) -> Result<(), Error> {
    let Words { language, metadata } = words;
    let status = if new.started.is_some() { Status::Running } else { Status::Queued };
    let (key, request) = match &new.idempotency {
        Some(idempotency) => (Some(&idempotency.key), Some(&idempotency.request)),
        None => (None, None),
    };
    let sql = "INSERT INTO executions (tenant, id, status, language, metadata, created_ms, started_ms, \
               idempotency_key, request_digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let values =
        params![new.tenant, new.id, status, language, metadata, new.created, new.started, key, request];
    db.prepare_cached(sql)?.execute(values).map_err(owner_missing)?;
    index_metadata(db, new, db.last_insert_rowid(), metadata)
}

fn finish(
    db: &Connection,
    tenant: &TenantName,
    id: &ExecutionId,
    finished: &Finished,
) -> Result<Finish, Error> {
    let cpu = bound::count("cpu_ms", finished.cpu_ms)?;
    let size = (finished.json.len() + ROW) as i64;
    let sql = "UPDATE executions SET status = ?3, exit_code = ?4, cpu_ms = ?5, ended_ms = ?6, \
               size_bytes = ?7 + length(CAST(metadata AS BLOB)) \
               WHERE tenant = ?1 AND id = ?2 AND ended_ms IS NULL RETURNING seq";
    let values = params![tenant, id, finished.status, finished.exit_code, cpu, finished.ended, size];
    let seq: Option<i64> = db.prepare_cached(sql)?.query_row(values, |row| row.get(0)).optional()?;
    let Some(seq) = seq else { return already(db, tenant, id) };
    db.prepare_cached("INSERT INTO results (seq, json) VALUES (?, ?)")?
        .execute(params![seq, finished.json])?;
    let used = Usage { cpu_ms: finished.cpu_ms, executions: 1 };
    usage::add(db, tenant, finished.ended.day(), used)?;
    Ok(Finish::Recorded)
}

fn already(db: &Connection, tenant: &TenantName, id: &ExecutionId) -> Result<Finish, Error> {
    let sql = "SELECT status FROM executions WHERE tenant = ? AND id = ?";
    let status = db.query_row(sql, params![tenant, id], |row| row.get(0)).optional()?;
    status.map(Finish::Already).ok_or(Error::NotFound(Kind::Execution))
}
