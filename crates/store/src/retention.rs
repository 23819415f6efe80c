//! Retention: deletes what exceeds an age or size limit, in small steps so that other writes can run in
//! between.
//!
//! Above the size limit, the oldest executions of the tenant that stores the most are deleted first, so a
//! tenant cannot displace the results of others.

use std::time::Duration;

use rusqlite::{Connection, params};

use crate::error::Error;
use crate::name::TenantName;
use crate::size_limits;
use crate::store::Store;
use crate::time::Timestamp;

/// Maximum number of rows that one step deletes.
pub(crate) const MAX_STEP_ROWS: i64 = 100;
/// Number of deleted bytes after which a step ends.
const MAX_STEP_BYTES: i64 = 8 << 20;
/// Maximum number of pages that one step returns to the file system.
const MAX_STEP_PAGES: i64 = 256;

/// Limits on what is kept.
#[derive(Debug, Clone, Copy, Default)]
pub struct Retention {
    /// Maximum age of finished executions and ended sandboxes.
    pub max_age: Option<Duration>,
    /// Maximum total size of finished executions.
    pub max_bytes: Option<u64>,
    /// Maximum age of audit entries. Refusals are limited separately, see [`Store::audit`].
    pub audit_age: Option<Duration>,
}

/// Counts of what a retention run deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PruneSummary {
    /// Number of executions.
    pub executions: u64,
    /// Number of ended sandboxes.
    pub sandboxes: u64,
    /// Number of audit entries.
    pub audit: u64,
    /// Size of the deleted results.
    pub bytes: u64,
    /// Whether more is left to delete.
    pub more: bool,
}

impl Store {
    /// Runs one small step.
    ///
    /// # Errors
    /// The database cannot be written.
    pub async fn prune_step(&self, retention: Retention, now: Timestamp) -> Result<PruneSummary, Error> {
        let bounds = RetentionCutoffs {
            ended_before: retention.max_age.map(|age| now.minus(age)),
            max_bytes: retention
                .max_bytes
                .map(|bytes| size_limits::to_sql_integer("max_bytes", bytes))
                .transpose()?,
            audited_before: retention.audit_age.map(|age| now.minus(age)),
        };
        self.write(move |db| prune_once(db, bounds)).await
    }

    /// Runs steps until nothing is left to delete; other writes run in between.
    ///
    /// # Errors
    /// The database cannot be written; earlier deletions stay.
    pub async fn prune(&self, retention: Retention, now: Timestamp) -> Result<PruneSummary, Error> {
        let mut all = PruneSummary::default();
        loop {
            let step = self.prune_step(retention, now).await?;
            all.executions += step.executions;
            all.sandboxes += step.sandboxes;
            all.audit += step.audit;
            all.bytes += step.bytes;
            if !step.more {
                return Ok(all);
            }
        }
    }
}

/// [`Retention`] as cutoffs at one moment.
#[derive(Clone, Copy)]
struct RetentionCutoffs {
    ended_before: Option<Timestamp>,
    max_bytes: Option<i64>,
    audited_before: Option<Timestamp>,
}

fn prune_once(db: &Connection, bounds: RetentionCutoffs) -> Result<PruneSummary, Error> {
    let mut pruned = PruneSummary::default();
    if let Some(cutoff) = bounds.ended_before {
        let sql = "SELECT seq, size_bytes FROM executions WHERE ended_ms < ? ORDER BY ended_ms LIMIT ?";
        delete_executions(
            db,
            &find_candidates(db, sql, params![cutoff, MAX_STEP_ROWS])?,
            i64::MAX,
            &mut pruned,
        )?;
        pruned.sandboxes = prune_sandboxes(db, cutoff)?;
    }
    if let Some(cutoff) = bounds.audited_before {
        pruned.audit = prune_audit(db, cutoff)?;
    }
    pruned.more |= pruned.sandboxes.max(pruned.audit) >= MAX_STEP_ROWS.unsigned_abs();
    if let Some(most) = bounds.max_bytes
        && !pruned.more
    {
        prune_largest(db, most, &mut pruned)?;
    }
    pruned.more |= vacuum_step(db)?;
    Ok(pruned)
}

fn prune_sandboxes(db: &Connection, cutoff: Timestamp) -> Result<u64, Error> {
    let sql = "DELETE FROM sandboxes WHERE (tenant, id) IN \
               (SELECT tenant, id FROM sandboxes WHERE ended_ms < ? ORDER BY ended_ms LIMIT ?)";
    Ok(db.execute(sql, params![cutoff, MAX_STEP_ROWS])? as u64)
}

/// Raises the stored cutoff of the audit log, which never moves back; a trigger only allows deletions before
/// it.
fn prune_audit(db: &Connection, cutoff: Timestamp) -> Result<u64, Error> {
    let floor = "INSERT INTO settings (name, value) VALUES ('audit.kept_since_ms', ?) ON CONFLICT DO UPDATE \
                 SET value = max(CAST(value AS INTEGER), CAST(excluded.value AS INTEGER))";
    db.execute(floor, [cutoff.millis().to_string()])?;
    let sql = "DELETE FROM audit WHERE at_ms < ? AND seq IN (SELECT seq FROM audit ORDER BY seq LIMIT ?)";
    Ok(db.execute(sql, params![cutoff, MAX_STEP_ROWS])? as u64)
}

fn prune_largest(db: &Connection, most: i64, pruned: &mut PruneSummary) -> Result<(), Error> {
    let total: i64 =
        db.query_row("SELECT coalesce(sum(stored_bytes), 0) FROM tenants", [], |row| row.get(0))?;
    if total <= most {
        return Ok(());
    }
    let largest = "SELECT name FROM tenants ORDER BY stored_bytes DESC LIMIT 1";
    let tenant: TenantName = db.query_row(largest, [], |row| row.get(0))?;
    let sql = "SELECT seq, size_bytes FROM executions WHERE tenant = ? AND ended_ms IS NOT NULL \
               ORDER BY id LIMIT ?";
    let before = pruned.bytes;
    delete_executions(db, &find_candidates(db, sql, params![tenant, MAX_STEP_ROWS])?, total - most, pruned)?;
    let freed = i64::try_from(pruned.bytes - before).unwrap_or(i64::MAX);
    pruned.more = freed > 0 && total - freed > most;
    Ok(())
}

pub(crate) fn find_candidates(
    db: &Connection,
    sql: &str,
    values: impl rusqlite::Params,
) -> Result<Vec<(i64, i64)>, Error> {
    let mut statement = db.prepare_cached(sql)?;
    Ok(statement.query_map(values, |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?)
}

/// Deletes from the front until `wanted` bytes are freed or the step's limit is reached.
pub(crate) fn delete_executions(
    db: &Connection,
    rows: &[(i64, i64)],
    wanted: i64,
    pruned: &mut PruneSummary,
) -> Result<(), Error> {
    let mut delete = db.prepare_cached("DELETE FROM executions WHERE seq = ?")?;
    let (mut freed, mut removed) = (0, 0);
    for (seq, size) in rows {
        delete.execute([seq])?;
        (freed, removed) = (freed + size, removed + 1);
        if freed >= wanted.min(MAX_STEP_BYTES) {
            break;
        }
    }
    pruned.executions += removed;
    pruned.bytes += freed.unsigned_abs();
    pruned.more |= freed < wanted && (freed >= MAX_STEP_BYTES || removed >= MAX_STEP_ROWS.unsigned_abs());
    Ok(())
}

/// If more than a quarter of the file is free, returns some of it to the file system. The rest is left for
/// new results.
fn vacuum_step(db: &Connection) -> Result<bool, Error> {
    let number = |name| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (free, pages) = (number("freelist_count")?, number("page_count")?);
    if free <= MAX_STEP_PAGES || free <= pages / 4 {
        return Ok(false);
    }
    let mut vacuum = db.prepare(&format!("PRAGMA incremental_vacuum({MAX_STEP_PAGES})"))?;
    let mut rows = vacuum.query([])?;
    // Each row stands for one freed page.
    while rows.next()?.is_some() {}
    Ok(true)
}
