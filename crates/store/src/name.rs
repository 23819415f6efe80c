//! Names that people choose: short, plain, and safe as file names.

use std::fmt;
use std::str::FromStr;

use rusqlite::ToSql;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Error;
use crate::id::text_column;

const MAX_NAME_BYTES: usize = 63;

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $field:literal,)+) => {$(
        $(#[$doc])*
        /// Values of this type are valid and safe as file names.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
        #[serde(transparent)]
        #[schemars(inline)]
        pub struct $name(String);

        impl $name {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                if is_name(text) { Ok(Self(text.to_owned())) } else { Err(Error::invalid($field, RULE)) }
            }
        }

        text_column!($name);
    )+};
}

names! {
    /// Name of a tenant.
    TenantName = "tenant",
    /// Name of a profile.
    ProfileName = "profile",
    /// Name of a tenant's volume.
    VolumeName = "volume",
}

const RULE: &str = "must be 1 to 63 of a–z, 0–9, '-', '_' and '.', starting with a letter or digit";

fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= MAX_NAME_BYTES
        && text.bytes().next().is_some_and(plain)
        && text.bytes().all(|byte| plain(byte) || matches!(byte, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["default", "a", "7", "team-a.eu_1", &"x".repeat(63)] {
            assert_eq!(good.parse::<TenantName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "-x", "A", "a/b", "a b", "é", "a\0", &"x".repeat(64)] {
            assert!(bad.parse::<TenantName>().is_err(), "{bad}");
        }
    }
}
