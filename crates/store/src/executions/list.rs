//! Reads executions: one by its id, or many in pages.
//!
//! Pages are ordered by id, newest first, and the next page begins below the last id of this one. New
//! executions move no others, so a list never repeats or misses one.

use belljar_engine::report::Status;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use schemars::JsonSchema;
use serde::Serialize;

use super::{ExecutionRecord, ExecutionSummary, metadata, status_column};
use crate::error::Error;
use crate::id::ExecutionId;
use crate::name::TenantName;
use crate::size_limits;
use crate::store::Store;

const COLUMNS: &str = "e.id, e.status, e.language, e.metadata, e.created_ms, e.started_ms, e.ended_ms, \
                       e.exit_code, e.cpu_ms, e.size_bytes";

/// Which executions a list contains.
#[derive(Debug, Clone, Default)]
pub struct ExecutionFilter {
    /// Only those with this status.
    pub status: Option<Status>,
    /// Only those in this language.
    pub language: Option<String>,
    /// Only those with all of these metadata values; numbers and booleans are compared as text. Of each
    /// execution only the first 32 plain values are indexed, with keys of up to 64 bytes and values of up to
    /// 256.
    pub metadata: Vec<(String, String)>,
}

/// A page of executions, without their results.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ExecutionPage {
    /// Executions, newest first.
    pub executions: Vec<ExecutionSummary>,
    /// Cursor of the next page; null on the last page.
    pub next_cursor: Option<ExecutionId>,
}

impl Store {
    /// Returns an execution with its result, or `None` for an unknown id or another tenant's execution.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn execution(
        &self,
        tenant: &TenantName,
        id: &ExecutionId,
    ) -> Result<Option<ExecutionRecord>, Error> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.read(move |db| find(db, &tenant, &id)).await
    }

    /// Returns a tenant's executions below `cursor`, newest first.
    ///
    /// # Errors
    /// `limit` is not from 1 to 200, the filter has more than 8 metadata values, or the database cannot be
    /// read.
    pub async fn executions(
        &self,
        tenant: &TenantName,
        filter: ExecutionFilter,
        cursor: Option<ExecutionId>,
        limit: u32,
    ) -> Result<ExecutionPage, Error> {
        size_limits::check_metadata_filter(&filter.metadata)?;
        let (tenant, limit) = (tenant.clone(), size_limits::page_limit(limit)?);
        self.read(move |db| find_page(db, &tenant, &filter, cursor.as_ref(), limit)).await
    }
}

fn find(db: &Connection, tenant: &TenantName, id: &ExecutionId) -> Result<Option<ExecutionRecord>, Error> {
    let sql = format!(
        "SELECT {COLUMNS}, r.json FROM executions e LEFT JOIN results r ON r.seq = e.seq \
         WHERE e.tenant = ? AND e.id = ?"
    );
    let mut statement = db.prepare_cached(&sql)?;
    let found = statement.query_row(params![tenant, id], |row| {
        Ok(ExecutionRecord { summary: from_row(row)?, result: row.get(10)? })
    });
    Ok(found.optional()?)
}

fn find_page(
    db: &Connection,
    tenant: &TenantName,
    filter: &ExecutionFilter,
    cursor: Option<&ExecutionId>,
    limit: u32,
) -> Result<ExecutionPage, Error> {
    // One row more than the limit shows whether there is a next page.
    let more = limit + 1;
    let status = filter.status.map(Status::name);
    let mut executions = ExecutionQuery::new(tenant, filter, status.as_ref(), cursor).run(db, &more)?;
    let full = executions.len() > limit as usize;
    executions.truncate(limit as usize);
    let next_cursor = executions.last().filter(|_| full).map(|last| last.id.clone());
    Ok(ExecutionPage { executions, next_cursor })
}

/// FROM clause, conditions and order of a list query, with the values to bind in the same order.
struct ExecutionQuery<'a> {
    sql: String,
    values: Vec<&'a dyn ToSql>,
}

impl<'a> ExecutionQuery<'a> {
    fn new(
        tenant: &'a TenantName,
        filter: &'a ExecutionFilter,
        status: Option<&'a &str>,
        cursor: Option<&'a ExecutionId>,
    ) -> Self {
        let mut values = filter.metadata.iter();
        // The first metadata value drives the query: a rare value is found without reading everything else.
        let mut query = match values.next() {
            None => Self { sql: "executions e WHERE e.tenant = ?".to_owned(), values: vec![tenant] },
            Some((key, value)) => {
                Self { sql: metadata::FROM_FIRST_VALUE.to_owned(), values: vec![tenant, key, value] }
            }
        };
        for (key, value) in values {
            query.and(metadata::HAS_VALUE, &[key, value]);
        }
        if let Some(status) = status {
            query.and("e.status = ?", &[status]);
        }
        if let Some(language) = &filter.language {
            query.and("e.language = ?", &[language]);
        }
        // The metadata index has its own id column.
        let id = if filter.metadata.is_empty() { "e.id" } else { "m.id" };
        if let Some(cursor) = cursor {
            query.and(&format!("{id} < ?"), &[cursor]);
        }
        query.sql += &format!(" ORDER BY {id} DESC LIMIT ?");
        query
    }

    fn and(&mut self, condition: &str, values: &[&'a dyn ToSql]) {
        self.sql += " AND ";
        self.sql += condition;
        self.values.extend(values);
    }

    fn run(mut self, db: &Connection, limit: &'a u32) -> Result<Vec<ExecutionSummary>, Error> {
        self.values.push(limit);
        let mut statement = db.prepare_cached(&format!("SELECT {COLUMNS} FROM {}", self.sql))?;
        Ok(statement.query_map(self.values.as_slice(), from_row)?.collect::<Result<_, _>>()?)
    }
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<ExecutionSummary> {
    let metadata: String = row.get(3)?;
    Ok(ExecutionSummary {
        id: row.get(0)?,
        status: status_column(row, 1)?,
        language: row.get(2)?,
        // Metadata is validated when it is written: anything but an object is a damaged row, shown as empty.
        metadata: serde_json::from_str(&metadata).unwrap_or_default(),
        created: row.get(4)?,
        started: row.get(5)?,
        ended: row.get(6)?,
        exit_code: row.get(7)?,
        cpu_ms: row.get::<_, i64>(8)?.unsigned_abs(),
        size_bytes: row.get::<_, i64>(9)?.unsigned_abs(),
    })
}
