//! Permissions of an API key.

use std::fmt;
use std::str::FromStr;

use rusqlite::ToSql;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};
use serde::{Serialize, Serializer};

use crate::error::Error;
use crate::text_enum::text_enum;

text_enum! {
    /// A permission of a key.
    Scope, "scope" {
        /// Use executions.
        Run = "run",
        /// Use sandboxes, volumes and snapshots.
        Sandboxes = "sandboxes",
        /// Administer tenants, keys, profiles and the audit log, of all tenants.
        Admin = "admin",
    }
}

/// A set of permissions; its text form is `run,sandboxes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes {
    bits: u8,
}

impl Scopes {
    /// Returns all scopes.
    pub fn all() -> Self {
        Scope::ALL.iter().copied().collect()
    }

    /// Returns whether the set contains a scope.
    pub fn contains(self, scope: Scope) -> bool {
        self.bits & bit(scope) != 0
    }

    fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.iter().copied().filter(move |scope| self.contains(*scope))
    }
}

fn bit(scope: Scope) -> u8 {
    1 << scope as u8
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self { bits: scopes.into_iter().fold(0, |bits, scope| bits | bit(scope)) }
    }
}

impl FromStr for Scopes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.split(',').filter(|word| !word.is_empty()).map(str::parse).collect()
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = self.iter().map(Scope::as_str).collect();
        f.write_str(&words.join(","))
    }
}

impl Serialize for Scopes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl ToSql for Scopes {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.to_string().into())
    }
}

impl FromSql for Scopes {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_str()?.parse().map_err(FromSqlError::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_a_closed_list() {
        let scopes: Scopes = "sandboxes,run".parse().unwrap();
        assert_eq!(scopes.to_string(), "run,sandboxes");
        assert!(scopes.contains(Scope::Run) && !scopes.contains(Scope::Admin));
        assert_eq!(serde_json::to_string(&Scopes::all()).unwrap(), r#"["run","sandboxes","admin"]"#);
        assert_eq!("".parse::<Scopes>().unwrap(), Scopes::default());
        assert!("root".parse::<Scopes>().is_err());
    }
}
