//! Profiles that administrators added or changed, as JSON; what is in one, the engine knows.

use rusqlite::{OptionalExtension, params};
use serde_json::{Map, Value};

use crate::bound::{self, MAX_SETTINGS};
use crate::error::{Error, Kind, changed};
use crate::name::ProfileName;
use crate::store::Store;
use crate::time::Timestamp;

/// A profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredProfile {
    /// Its name.
    pub name: ProfileName,
    /// What it says.
    pub json: String,
    /// When it was last changed.
    pub changed: Timestamp,
}

/// The most profiles.
const MOST: i64 = 1_000;

impl Store {
    /// Adds a profile, or replaces the one of this name.
    ///
    /// # Errors
    /// It is longer than 64 KB, or there are 1,000.
    pub async fn set_profile(
        &self,
        name: &ProfileName,
        profile: &Map<String, Value>,
        at: Timestamp,
    ) -> Result<(), Error> {
        let (name, json) = (name.clone(), bound::json("profile", profile, MAX_SETTINGS)?);
        self.write(move |db| {
            let others = "SELECT count(*) FROM profiles WHERE name <> ?";
            if db.query_row(others, [&name], |row| row.get::<_, i64>(0))? >= MOST {
                return Err(Error::invalid("profile", format!("there are {MOST} already")));
            }
            let sql = "INSERT INTO profiles (name, json, changed_ms) VALUES (?, ?, ?) \
                       ON CONFLICT DO UPDATE SET json = excluded.json, changed_ms = excluded.changed_ms";
            Ok(db.execute(sql, params![name, json, at]).map(drop)?)
        })
        .await
    }

    /// One profile.
    ///
    /// # Errors
    /// The database cannot answer.
    pub async fn profile(&self, name: &ProfileName) -> Result<Option<StoredProfile>, Error> {
        let name = name.clone();
        self.read(move |db| {
            let sql = "SELECT name, json, changed_ms FROM profiles WHERE name = ?";
            Ok(db.query_row(sql, [&name], from_row).optional()?)
        })
        .await
    }

    /// All profiles by name.
    ///
    /// # Errors
    /// The database cannot answer.
    pub async fn profiles(&self) -> Result<Vec<StoredProfile>, Error> {
        self.read(|db| {
            let mut statement =
                db.prepare_cached("SELECT name, json, changed_ms FROM profiles ORDER BY name")?;
            let profiles = statement.query_map([], from_row)?.collect::<Result<_, _>>()?;
            Ok(profiles)
        })
        .await
    }

    /// Removes a profile.
    ///
    /// # Errors
    /// There is no such profile.
    pub async fn remove_profile(&self, name: &ProfileName) -> Result<(), Error> {
        let name = name.clone();
        self.write(move |db| {
            let removed = db.execute("DELETE FROM profiles WHERE name = ?", [&name])?;
            changed(removed, Error::NotFound(Kind::Profile))
        })
        .await
    }
}

fn from_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<StoredProfile> {
    Ok(StoredProfile { name: row.get(0)?, json: row.get(1)?, changed: row.get(2)? })
}
