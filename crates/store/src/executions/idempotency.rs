//! Idempotency keys, which identify a repeated request.

use std::fmt;
use std::str::FromStr;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, ToSql, params};

use super::{BeginResult, status_column};
use crate::error::Error;
use crate::id::{ExecutionId, text_column};
use crate::name::TenantName;
use crate::secret::Digest;

const MAX_KEY_BYTES: usize = 255;

/// A client's `Idempotency-Key`: up to 255 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Returns the key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the key of one of the inputs of a request. The first has the key of the request itself, and no other
    /// request can have one of the others, because a client's key has no spaces.
    #[must_use]
    pub fn of_input(&self, index: u64) -> Self {
        if index == 0 { self.clone() } else { Self(format!("{} {index}", self.0)) }
    }
}

impl FromStr for IdempotencyKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let fits =
            (1..=MAX_KEY_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        let rule = "must be 1 to 255 visible ASCII characters";
        if fits { Ok(Self(text.to_owned())) } else { Err(Error::invalid("Idempotency-Key", rule)) }
    }
}

text_column!(IdempotencyKey);

/// An idempotency key with the digest of its request.
#[derive(Debug, Clone)]
pub struct Idempotency {
    /// The client's key.
    pub key: IdempotencyKey,
    /// Digest of the whole request: a different request with the same key is a conflict.
    pub request: Digest,
}

/// Looks for an earlier execution with this key.
pub(super) fn find_earlier(
    db: &Connection,
    tenant: &TenantName,
    idempotency: &Idempotency,
) -> Result<Option<BeginResult>, Error> {
    let sql = "SELECT id, status, request_digest FROM executions WHERE tenant = ? AND idempotency_key = ?";
    let mut statement = db.prepare_cached(sql)?;
    let found = statement
        .query_row(params![tenant, idempotency.key], |row| {
            Ok((row.get::<_, ExecutionId>(0)?, status_column(row, 1)?, row.get::<_, Digest>(2)?))
        })
        .optional()?;
    Ok(found.map(|(id, status, request)| match (request.matches(&idempotency.request), status.is_final()) {
        (false, _) => BeginResult::Conflict,
        (true, true) => BeginResult::Done(id),
        (true, false) => BeginResult::InProgress(id),
    }))
}
