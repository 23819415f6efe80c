//! Ids: ordered by time, not to be guessed, and safe as file names.

use std::fmt;
use std::str::FromStr;

use rusqlite::ToSql;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};
use serde::Serialize;

use crate::error::Error;
use crate::secret::random;
use crate::time::Timestamp;

/// Digits that are hard to misread, in their order (Crockford's base 32).
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// 50 bits of milliseconds: enough for 35,000 years.
const TIME: u32 = 10;
/// 128 random bits.
const RANDOM: u32 = 26;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal, $time:expr, $random:expr;)+) => {$(
        $(#[$doc])*
        /// Holding one means that it is a safe file name.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// A new one.
            ///
            /// # Errors
            /// The system gives no random numbers.
            pub fn generate() -> Result<Self, Error> {
                Ok(Self(format!(concat!($prefix, "_{}"), digits($time, $random)?)))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                match text.strip_prefix(concat!($prefix, "_")) {
                    Some(digits) if is_digits(digits, $time + $random) => Ok(Self(text.to_owned())),
                    _ => Err(Error::invalid("id", concat!("is no id of the form ", $prefix, "_…"))),
                }
            }
        }

        crate::id::text_column!($name);
    )+};
}

/// A newtype over text that is parsed again when it comes out of the database.
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
    /// Names an execution. Sorts by the time at which it was made.
    ExecutionId = "exec", TIME, RANDOM;
    /// Names a sandbox. Sorts by the time at which it was made.
    SandboxId = "sbx", TIME, RANDOM;
    /// Names a snapshot. Sorts by the time at which it was made.
    SnapshotId = "snap", TIME, RANDOM;
    /// Names the place where a volume's files are.
    VolumeId = "vol", TIME, RANDOM;
    /// Names an API key: the part of the key that may be seen. It opens nothing, so it can be short.
    KeyId = "bj", 0, 12;
}

fn digits(time: u32, places: u32) -> Result<String, Error> {
    let now = u128::try_from(Timestamp::now().millis()).unwrap_or(0);
    let bits = u128::from_be_bytes(random()?);
    Ok(base32(now, time) + &base32(bits, places))
}

pub(crate) fn is_digits(text: &str, places: u32) -> bool {
    text.len() == places as usize && text.bytes().all(|byte| DIGITS.contains(&byte))
}

/// The lowest `5 * places` bits.
pub(crate) fn base32(bits: u128, places: u32) -> String {
    (0..places).rev().map(|place| char::from(DIGITS[(bits >> (5 * place)) as usize & 31])).collect()
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    #[test]
    fn ids_have_one_shape_and_sort_by_time() {
        let first = ExecutionId::generate().unwrap();
        sleep(Duration::from_millis(3));
        let second = ExecutionId::generate().unwrap();
        assert!(first < second, "{first} {second}");
        assert_eq!(first.as_str().len(), 41);
        assert_eq!(first.as_str().parse::<ExecutionId>().unwrap(), first);
        assert_eq!(base32(u128::MAX, RANDOM), format!("7{}", "z".repeat(25)));
    }

    #[test]
    fn what_is_no_id_is_refused() {
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
