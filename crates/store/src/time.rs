//! Timestamps and days, as integers.

use std::fmt;
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

    /// Returns the day this many days earlier.
    #[must_use]
    pub fn minus_days(self, days: u32) -> Day {
        Day(self.0.saturating_sub(days.into()))
    }

    /// Returns the following day, at whose start daily quotas reset.
    #[must_use]
    pub fn next(self) -> Day {
        Day(self.0.saturating_add(1))
    }
}

/// The date in the Gregorian calendar: `2026-11-19`.
impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Years of this count begin in March, so that a leap day is the last day of its year.
        let days = self.0.saturating_add(719_468);
        let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        write!(f, "{year:04}-{month:02}-{day:02}")
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
    fn days_are_shown_as_dates() {
        for (days, date) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_776, "2026-11-19"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
            (-1, "1969-12-31"),
        ] {
            assert_eq!(Day(days).to_string(), date);
        }
        assert_eq!(Day(3).minus_days(4), Day(-1));
    }

    #[test]
    fn timestamps_saturate() {
        let end = Timestamp::from_millis(i64::MAX);
        assert_eq!(end.plus(Duration::MAX), end);
        assert!(Timestamp::now().minus(Duration::MAX) < Timestamp::from_millis(0));
    }
}
