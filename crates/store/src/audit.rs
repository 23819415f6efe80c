//! The audit log: every administrative action and every refused one. Entries never change. Old ones expire
//! (see [`Retention`](crate::Retention)), and only the newest thousand refusals of a tenant are kept, because
//! a client with a key can cause any number of them. Triggers in the database prevent every other deletion.
//!
//! So nobody can fill the disk, or displace the entries about administrators' actions, by being refused.

use rusqlite::{Row, params};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Error;
use crate::size_limits::{self, MAX_DETAIL_BYTES, MAX_WORD_BYTES};
use crate::store::Store;
use crate::text_enum::text_enum;
use crate::time::Timestamp;

text_enum! {
    /// Outcome of an audited action.
    AuditOutcome, "outcome" {
        /// The action succeeded.
        Done = "done",
        /// The action was not allowed.
        Refused = "refused",
        /// The action was allowed but failed.
        Failed = "failed",
    }
}

/// One action: who did what, to what, and with which outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AuditEntry {
    /// Time in milliseconds since 1970.
    pub at: Timestamp,
    /// Id of the acting key, or a name for an actor without a key.
    pub actor: String,
    /// Tenant of the actor.
    pub tenant: Option<String>,
    /// The action, such as `key.create`.
    pub action: String,
    /// Object of the action.
    pub target: Option<String>,
    /// Outcome: done, refused or failed.
    pub outcome: AuditOutcome,
    /// Id of the HTTP request.
    pub request_id: Option<String>,
    /// Details in one line.
    pub detail: Option<String>,
}

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "AuditEntry")]
pub struct AuditRecord {
    /// Ascending sequence number; a gap means that entries were deleted.
    pub seq: i64,
    /// The entry.
    #[serde(flatten)]
    pub entry: AuditEntry,
}

/// A page of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AuditPage {
    /// Entries, newest first.
    pub entries: Vec<AuditRecord>,
    /// Cursor of the next page; null on the last page.
    pub next_cursor: Option<i64>,
}

impl AuditEntry {
    fn validated(self) -> Result<Self, Error> {
        let short = |field, text: Option<String>| {
            text.map(|text| size_limits::check_text(field, text, MAX_WORD_BYTES)).transpose()
        };
        Ok(Self {
            actor: size_limits::check_text("actor", self.actor, MAX_WORD_BYTES)?,
            tenant: short("tenant", self.tenant)?,
            action: size_limits::check_text("action", self.action, MAX_WORD_BYTES)?,
            target: short("target", self.target)?,
            request_id: short("request_id", self.request_id)?,
            detail: self
                .detail
                .map(|text| size_limits::check_text("detail", text, MAX_DETAIL_BYTES))
                .transpose()?,
            ..self
        })
    }
}

impl Store {
    /// Appends to the log; the entry is committed when this returns. Only the newest thousand refusals of a
    /// tenant are kept.
    ///
    /// # Errors
    /// A field is too long, or the database cannot be written.
    pub async fn audit(&self, entry: AuditEntry) -> Result<(), Error> {
        let entry = entry.validated()?;
        self.write_waiting(MAX_DETAIL_BYTES, move |db| {
            let sql = "INSERT INTO audit (at_ms, actor, tenant, action, target, outcome, request_id, detail) \
                       VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
            let AuditEntry { at, actor, tenant, action, target, outcome, request_id, detail } = &entry;
            let values = params![at, actor, tenant, action, target, outcome, request_id, detail];
            Ok(db.prepare_cached(sql)?.execute(values).map(drop)?)
        })
        .await
    }

    /// Returns the entries below `cursor`, newest first, of one tenant or of all.
    ///
    /// # Errors
    /// `limit` is not from 1 to 200, or the database cannot be read.
    pub async fn audit_log(
        &self,
        tenant: Option<String>,
        cursor: Option<i64>,
        limit: u32,
    ) -> Result<AuditPage, Error> {
        let limit = size_limits::page_limit(limit)?;
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
