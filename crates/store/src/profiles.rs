//! Profiles that administrators added or changed, stored as JSON. The engine defines their content.

use rusqlite::params;
use serde_json::{Map, Value};

use crate::error::{Error, ObjectKind};
use crate::name::ProfileName;
use crate::size_limits::{self, MAX_SETTINGS_BYTES};
use crate::store::Store;
use crate::time::Timestamp;

/// A profile that an administrator stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredProfile {
    /// Name of the profile.
    pub name: ProfileName,
    /// Content of the profile, as JSON.
    pub json: String,
    /// When the profile was last changed.
    pub changed: Timestamp,
}

/// Maximum number of profiles.
const MAX_PROFILES: i64 = 1_000;

impl Store {
    /// Adds a profile, or replaces the one with this name.
    ///
    /// # Errors
    /// The profile is longer than 64 KB, or there are already 1,000.
    pub async fn set_profile(
        &self,
        name: &ProfileName,
        profile: &Map<String, Value>,
        at: Timestamp,
    ) -> Result<(), Error> {
        let (name, json) = (name.clone(), size_limits::encode_json("profile", profile, MAX_SETTINGS_BYTES)?);
        self.write(move |db| {
            let others = "SELECT count(*) FROM profiles WHERE name <> ?";
            if db.query_row(others, [&name], |row| row.get::<_, i64>(0))? >= MAX_PROFILES {
                return Err(Error::invalid(
                    "profile",
                    format!("there are already {MAX_PROFILES}; remove some"),
                ));
            }
            let sql = "INSERT INTO profiles (name, json, changed_ms) VALUES (?, ?, ?) \
                       ON CONFLICT DO UPDATE SET json = excluded.json, changed_ms = excluded.changed_ms";
            Ok(db.execute(sql, params![name, json, at]).map(drop)?)
        })
        .await
    }

    /// Returns a profile.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn profile(&self, name: &ProfileName) -> Result<Option<StoredProfile>, Error> {
        let sql = "SELECT name, json, changed_ms FROM profiles WHERE name = ?";
        self.row(sql, [name.clone()], from_row).await
    }

    /// Returns all profiles, ordered by name.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn profiles(&self) -> Result<Vec<StoredProfile>, Error> {
        self.rows("SELECT name, json, changed_ms FROM profiles ORDER BY name", [], from_row).await
    }

    /// Removes a profile.
    ///
    /// # Errors
    /// The profile does not exist.
    pub async fn remove_profile(&self, name: &ProfileName) -> Result<(), Error> {
        self.change_row("DELETE FROM profiles WHERE name = ?", [name.clone()], ObjectKind::Profile).await
    }
}

fn from_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<StoredProfile> {
    Ok(StoredProfile { name: row.get(0)?, json: row.get(1)?, changed: row.get(2)? })
}
