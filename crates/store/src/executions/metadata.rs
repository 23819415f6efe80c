//! Indexes executions by metadata: text, numbers and booleans, compared as text.

use rusqlite::{Connection, params};

use super::NewExecution;
use crate::error::Error;

/// Indexes the plain values of one execution. Must match migration 2, which indexed the older executions.
const INSERT_PLAIN_VALUES: &str = "INSERT OR IGNORE INTO execution_metadata (tenant, key, value, id, seq) \
    SELECT ?1, key, CASE type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(atom AS TEXT) END, ?2, ?3 \
    FROM json_each(?4) WHERE type IN ('text', 'integer', 'real', 'true', 'false') \
    AND length(CAST(key AS BLOB)) <= 64 AND length(CAST(atom AS BLOB)) <= 256 ORDER BY json_each.id LIMIT 32";

/// FROM clause of a query that is driven by one metadata value.
pub(super) const FROM_FIRST_VALUE: &str = "execution_metadata m CROSS JOIN executions e ON e.seq = m.seq \
    WHERE m.tenant = ? AND m.key = ? AND m.value = ?";
/// Condition for each further value.
pub(super) const HAS_VALUE: &str = "EXISTS (SELECT 1 FROM execution_metadata o \
    WHERE o.tenant = e.tenant AND o.key = ? AND o.value = ? AND o.id = e.id)";

pub(super) fn index_metadata(
    db: &Connection,
    new: &NewExecution,
    seq: i64,
    metadata: &str,
) -> Result<(), Error> {
    if new.metadata.is_empty() {
        return Ok(());
    }
    Ok(db
        .prepare_cached(INSERT_PLAIN_VALUES)?
        .execute(params![new.tenant, new.id, seq, metadata])
        .map(drop)?)
}
