//! How much is kept of one thing. Refused, never cut.

use serde_json::{Map, Value};

use crate::error::Error;

/// The longest metadata as JSON.
pub(crate) const MAX_METADATA: usize = 16 << 10;
/// The longest result as JSON.
pub(crate) const MAX_RESULT: usize = 64 << 20;
/// The longest settings of a sandbox, and the longest profile, as JSON.
pub(crate) const MAX_SETTINGS: usize = 64 << 10;
/// The longest label, language, action and the like.
pub(crate) const MAX_WORD: usize = 256;
/// The longest detail of an audit entry.
pub(crate) const MAX_DETAIL: usize = 1 << 10;
/// The most values of metadata that one list looks for.
const MAX_FILTER: usize = 8;
/// The most that one page shows.
pub(crate) const MAX_PAGE: u32 = 200;

pub(crate) fn text(field: &'static str, text: String, limit: usize) -> Result<String, Error> {
    match text.len() {
        bytes if bytes > limit => Err(Error::TooLarge { field, bytes, limit }),
        _ => Ok(text),
    }
}

pub(crate) fn metadata(metadata: &Map<String, Value>) -> Result<String, Error> {
    json("metadata", metadata, MAX_METADATA)
}

pub(crate) fn json<T: serde::Serialize>(
    field: &'static str,
    value: &T,
    limit: usize,
) -> Result<String, Error> {
    let json = serde_json::to_string(value).map_err(|error| Error::invalid(field, error.to_string()))?;
    text(field, json, limit)
}

pub(crate) fn page(limit: u32) -> Result<u32, Error> {
    match limit {
        1..=MAX_PAGE => Ok(limit),
        _ => Err(Error::invalid("limit", format!("must be from 1 to {MAX_PAGE}"))),
    }
}

/// What a list looks for in metadata.
pub(crate) fn metadata_filter(values: &[(String, String)]) -> Result<(), Error> {
    match values.len() {
        0..=MAX_FILTER => Ok(()),
        _ => Err(Error::invalid("metadata", format!("at most {MAX_FILTER} values can be looked for"))),
    }
}

/// A number as SQLite has it.
pub(crate) fn count(field: &'static str, value: u64) -> Result<i64, Error> {
    i64::try_from(value).map_err(|_| Error::invalid(field, "is too large"))
}
