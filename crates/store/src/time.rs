//! Timestamps and days, as integers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::ToSql;
use rusqlite::types::{FromSql, FromSqlResult, ToSqlOutput, ValueRef};
use schemars::JsonSchema;
use serde::Serialize;

const DAY_MS: i64 = 24 * 3_600 * 1_000;

/// A moment, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Returns the current time. A clock set before 1970 counts as 1970.
    pub fn now() -> Self {
        Self::from_millis(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis))
    }

    /// Converts from milliseconds since 1970.
    pub fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Returns the milliseconds since 1970.
    pub fn millis(self) -> i64 {
        self.0
    }

    /// Adds a duration, saturating.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(millis(span)))
    }

    /// Subtracts a duration, saturating.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(millis(span)))
    }

    /// Returns the UTC day that contains this moment.
    pub fn day(self) -> Day {
        Day(self.0.div_euclid(DAY_MS))
    }
}

/// A UTC day, in days since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Day(i64);

impl Day {
    /// Returns the first moment of the day.
    pub fn start(self) -> Timestamp {
        Timestamp(self.0.saturating_mul(DAY_MS))
    }

    /// Returns the following day, at whose start daily quotas reset.
    #[must_use]
    pub fn next(self) -> Day {
        Day(self.0.saturating_add(1))
    }
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

impl ToSql for Timestamp {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.0.into())
    }
}

impl FromSql for Timestamp {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_i64().map(Self)
    }
}

impl ToSql for Day {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.0.into())
    }
}

impl FromSql for Day {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_i64().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_ends_at_midnight() {
        let noon = Timestamp::from_millis(DAY_MS + DAY_MS / 2);
        assert_eq!(noon.day().start(), Timestamp::from_millis(DAY_MS));
        assert_eq!(noon.day().next().start(), Timestamp::from_millis(2 * DAY_MS));
        assert_eq!(Timestamp::from_millis(-1).day(), Day(-1));
    }

    #[test]
    fn timestamps_saturate() {
        let end = Timestamp::from_millis(i64::MAX);
        assert_eq!(end.plus(Duration::MAX), end);
        assert!(Timestamp::now().minus(Duration::MAX) < Timestamp::from_millis(0));
    }
}
