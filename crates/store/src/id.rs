//! Ids: sortable by time, unguessable, and safe as file names.

use std::fmt;
use std::str::FromStr;

use rusqlite::ToSql;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Error;
use crate::secret::random_bytes;
use crate::time::Timestamp;

/// Digits that are hard to misread, in ascending order (Crockford's Base32).
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Digits of the time part: 50 bits of milliseconds last 35,000 years.
const TIME_DIGITS: u32 = 10;
/// Digits of the random part: 128 bits.
const RANDOM_DIGITS: u32 = 26;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal, $time:expr, $random:expr;)+) => {$(
        $(#[$doc])*
        /// Values of this type are valid and safe as file names.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
        #[serde(transparent)]
        #[schemars(inline)]
        pub struct $name(String);

        impl $name {
            /// Generates a new id.
            ///
            /// # Errors
            /// The system provides no random numbers.
            pub fn generate() -> Result<Self, Error> {
                Ok(Self(format!(concat!($prefix, "_{}"), digits($time, $random)?)))
            }

            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                match text.strip_prefix(concat!($prefix, "_")) {
                    Some(digits) if is_digits(digits, $time + $random) => Ok(Self(text.to_owned())),
                    _ => Err(Error::invalid("id", concat!("must have the form ", $prefix, "_…"))),
                }
            }
        }

        crate::id::text_column!($name);
    )+};
}

/// Implements `Display` and the database conversions for a newtype over text, which is parsed again when it
/// is read.
macro_rules! text_column {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                Ok(self.as_str().into())
            }
        }

        impl FromSql for $name {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                value.as_str()?.parse().map_err(FromSqlError::other)
            }
        }
    };
}
pub(crate) use text_column;

ids! {
    /// Id of an execution. Sorts by creation time.
    ExecutionId = "exec", TIME_DIGITS, RANDOM_DIGITS;
    /// Id of a sandbox. Sorts by creation time.
    SandboxId = "sbx", TIME_DIGITS, RANDOM_DIGITS;
    /// Id of a snapshot. Sorts by creation time.
    SnapshotId = "snap", TIME_DIGITS, RANDOM_DIGITS;
    /// Id of a volume, which names the directory with its files.
    VolumeId = "vol", TIME_DIGITS, RANDOM_DIGITS;
    /// Id of an API key: the public part of the key. Short, because it grants nothing by itself.
    KeyId = "bj", 0, 12;
}

fn digits(time: u32, len: u32) -> Result<String, Error> {
    let now = u128::try_from(Timestamp::now().millis()).unwrap_or(0);
    let bits = u128::from_be_bytes(random_bytes()?);
    Ok(base32(now, time) + &base32(bits, len))
}

pub(crate) fn is_digits(text: &str, len: u32) -> bool {
    text.len() == len as usize && text.bytes().all(|byte| DIGITS.contains(&byte))
}

/// Formats the lowest `5 * len` bits.
pub(crate) fn base32(bits: u128, len: u32) -> String {
    (0..len).rev().map(|at| char::from(DIGITS[(bits >> (5 * at)) as usize & 31])).collect()
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    #[test]
    fn ids_have_a_fixed_form_and_sort_by_time() {
        let first = ExecutionId::generate().unwrap();
        sleep(Duration::from_millis(3));
        let second = ExecutionId::generate().unwrap();
        assert!(first < second, "{first} {second}");
        assert_eq!(first.as_str().len(), 41);
        assert_eq!(first.as_str().parse::<ExecutionId>().unwrap(), first);
        assert_eq!(base32(u128::MAX, RANDOM_DIGITS), format!("7{}", "z".repeat(25)));
    }

    #[test]
    fn invalid_ids_are_refused() {
        let good = SandboxId::generate().unwrap().to_string();
        let bad = [
            String::new(),
            "sbx_".to_owned(),
            good.replace("sbx", "exec"),
            good.to_uppercase(),
            format!("{good}0"),
            good.replacen(&good[6..8], "..", 1),
            good.replacen(&good[6..7], "/", 1),
            good.replacen(&good[6..7], "é", 1),
        ];
        for text in bad {
            assert!(text.parse::<SandboxId>().is_err(), "{text}");
        }
    }
}
