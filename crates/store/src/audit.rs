//! The audit log: every administrative act and every refused one. Nothing in it changes; what is old goes (see
//! [`Retention`](crate::Retention)), and of a tenant's refusals the newest thousand stay, because whoever has a key can be
//! refused as often as they like. The database itself lets nothing else go.

use rusqlite::{Row, params};
use serde::Serialize;

use crate::bound::{self, MAX_DETAIL, MAX_WORD};
use crate::error::Error;
use crate::store::Store;
use crate::time::Timestamp;
use crate::words::words;

words! {
    /// What came of an act.
    AuditOutcome, "outcome" {
        /// It was done.
        Done = "done",
        /// It was not allowed.
        Refused = "refused",
        /// It was allowed and did not succeed.
        Failed = "failed",
    }
}

/// Who did what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditEntry {
    /// When.
    pub at: Timestamp,
    /// Who: the id of a key, or what stands for somebody without one.
    pub actor: String,
    /// In which tenant.
    pub tenant: Option<String>,
    /// What: `key.create`.
    pub action: String,
    /// To what.
    pub target: Option<String>,
    /// What came of it.
    pub outcome: AuditOutcome,
    /// In which request.
    pub request_id: Option<String>,
    /// What else there is to say, in a line.
    pub detail: Option<String>,
}

/// An entry, and its place in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditRecord {
    /// Counts up; a hole is an entry that is gone.
    pub seq: i64,
    /// The entry.
    #[serde(flatten)]
    pub entry: AuditEntry,
}

/// Some entries, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditPage {
    /// The entries.
    pub entries: Vec<AuditRecord>,
    /// Where the next page begins; nothing at the end.
    pub next_cursor: Option<i64>,
}

impl AuditEntry {
    fn checked(self) -> Result<Self, Error> {
        let short =
            |field, text: Option<String>| text.map(|text| bound::text(field, text, MAX_WORD)).transpose();
        Ok(Self {
            actor: bound::text("actor", self.actor, MAX_WORD)?,
            tenant: short("tenant", self.tenant)?,
            action: bound::text("action", self.action, MAX_WORD)?,
            target: short("target", self.target)?,
            request_id: short("request_id", self.request_id)?,
            detail: self.detail.map(|text| bound::text("detail", text, MAX_DETAIL)).transpose()?,
            ..self
        })
    }
}

impl Store {
    /// Adds to the log. When this returns, it is there; of a tenant's refusals, the oldest beyond a thousand is not any more.
    ///
    /// # Errors
    /// Something in it is too long, or the database cannot write.
    pub async fn audit(&self, entry: AuditEntry) -> Result<(), Error> {
        let entry = entry.checked()?;
        self.record(MAX_DETAIL, move |db| {
            let sql = "INSERT INTO audit (at_ms, actor, tenant, action, target, outcome, request_id, detail) \
                       VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
            let AuditEntry { at, actor, tenant, action, target, outcome, request_id, detail } = &entry;
            let values = params![at, actor, tenant, action, target, outcome, request_id, detail];
            Ok(db.prepare_cached(sql)?.execute(values).map(drop)?)
        })
        .await
    }

    /// The log, newest first, from below `cursor` on; of one tenant, or all of it.
    ///
    /// # Errors
    /// `limit` is not from 1 to 200, or the database cannot answer.
    pub async fn audit_log(
        &self,
        tenant: Option<String>,
        cursor: Option<i64>,
        limit: u32,
    ) -> Result<AuditPage, Error> {
        let limit = bound::page(limit)?;
        self.read(move |db| {
            let sql = "SELECT seq, at_ms, actor, tenant, action, target, outcome, request_id, detail FROM audit \
                       WHERE seq < ?1 AND (?2 IS NULL OR tenant = ?2) ORDER BY seq DESC LIMIT ?3";
            let mut statement = db.prepare_cached(sql)?;
            let below = cursor.unwrap_or(i64::MAX);
            let rows = statement.query_map(params![below, tenant, limit + 1], from_row)?;
            let mut entries = rows.collect::<Result<Vec<_>, _>>()?;
            let full = entries.len() > limit as usize;
            entries.truncate(limit as usize);
            let next_cursor = entries.last().filter(|_| full).map(|last| last.seq);
            Ok(AuditPage { entries, next_cursor })
        })
        .await
    }
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<AuditRecord> {
    let entry = AuditEntry {
        at: row.get(1)?,
        actor: row.get(2)?,
        tenant: row.get(3)?,
        action: row.get(4)?,
        target: row.get(5)?,
        outcome: row.get(6)?,
        request_id: row.get(7)?,
        detail: row.get(8)?,
    };
    Ok(AuditRecord { seq: row.get(0)?, entry })
}
