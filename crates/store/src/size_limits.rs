//! Size limits of stored values. A value above its limit is refused, never truncated.

use serde_json::{Map, Value};

use crate::error::Error;

/// Longest metadata, in bytes of JSON.
pub(crate) const MAX_METADATA_BYTES: usize = 16 << 10;
/// Longest result, in bytes of JSON.
pub(crate) const MAX_RESULT_BYTES: usize = 64 << 20;
/// Longest sandbox settings, profile or server setting, in bytes of JSON.
pub(crate) const MAX_SETTINGS_BYTES: usize = 64 << 10;
/// Longest label, language, action or similar short text, in bytes.
pub(crate) const MAX_WORD_BYTES: usize = 256;
/// Longest detail of an audit entry, in bytes.
pub(crate) const MAX_DETAIL_BYTES: usize = 1 << 10;
/// Maximum number of metadata values in one filter.
const MAX_FILTER_VALUES: usize = 8;
/// Maximum number of rows on a page.
pub(crate) const MAX_PAGE_ROWS: u32 = 200;

pub(crate) fn check_text(field: &'static str, text: String, limit: usize) -> Result<String, Error> {
    match text.len() {
        bytes if bytes > limit => Err(Error::TooLarge { field, bytes, limit }),
        _ => Ok(text),
    }
}

pub(crate) fn encode_metadata(metadata: &Map<String, Value>) -> Result<String, Error> {
    encode_json("metadata", metadata, MAX_METADATA_BYTES)
}

pub(crate) fn encode_json<T: serde::Serialize>(
    field: &'static str,
    value: &T,
    limit: usize,
) -> Result<String, Error> {
    let json = serde_json::to_string(value).map_err(|error| Error::invalid(field, error.to_string()))?;
    check_text(field, json, limit)
}

pub(crate) fn page_limit(limit: u32) -> Result<u32, Error> {
    match limit {
        1..=MAX_PAGE_ROWS => Ok(limit),
        _ => Err(Error::invalid("limit", format!("must be from 1 to {MAX_PAGE_ROWS}"))),
    }
}

/// Refuses a filter with too many metadata values.
pub(crate) fn check_metadata_filter(values: &[(String, String)]) -> Result<(), Error> {
    match values.len() {
        0..=MAX_FILTER_VALUES => Ok(()),
        _ => Err(Error::invalid("metadata", format!("a filter may have at most {MAX_FILTER_VALUES} values"))),
    }
}

/// Converts a number to SQLite's signed integer.
pub(crate) fn to_sql_integer(field: &'static str, value: u64) -> Result<i64, Error> {
    i64::try_from(value).map_err(|_| Error::invalid(field, "is too large"))
}
