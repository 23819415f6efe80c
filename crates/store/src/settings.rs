//! Server settings that outlive it, each a JSON value, and a probe write that shows whether the database can
//! be written.

use rusqlite::{OptionalExtension, params};
use serde_json::Value;

use crate::error::Error;
use crate::size_limits::{self, MAX_SETTINGS_BYTES, MAX_WORD_BYTES};
use crate::store::Store;
use crate::time::Timestamp;

/// Setting that [`Store::probe`] writes.
const PROBE_SETTING: &str = "store.probed_ms";

impl Store {
    /// Stores a setting, or deletes it if the value is `null`.
    ///
    /// # Errors
    /// The value is longer than 64 KB.
    pub async fn set_setting(&self, name: &str, value: &Value) -> Result<(), Error> {
        let name = size_limits::check_text("setting", name.to_owned(), MAX_WORD_BYTES)?;
        let json = (!value.is_null())
            .then(|| size_limits::encode_json("setting", value, MAX_SETTINGS_BYTES))
            .transpose()?;
        self.write(move |db| {
            let done = match &json {
                None => db.execute("DELETE FROM settings WHERE name = ?", [&name]),
                Some(json) => db.prepare_cached(UPSERT_SETTING)?.execute(params![name, json]),
            };
            Ok(done.map(drop)?)
        })
        .await
    }

    /// Returns a setting.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn setting(&self, name: &str) -> Result<Option<Value>, Error> {
        let name = name.to_owned();
        self.read(move |db| {
            let sql = "SELECT value FROM settings WHERE name = ?";
            let json: Option<String> = db.query_row(sql, [&name], |row| row.get(0)).optional()?;
            let parse = |json: String| serde_json::from_str(&json);
            json.map(parse).transpose().map_err(|error| Error::Damaged(error.to_string()))
        })
        .await
    }

    /// Writes a small value to find out whether the database can be written.
    ///
    /// # Errors
    /// The database cannot be written.
    pub async fn probe(&self, at: Timestamp) -> Result<(), Error> {
        self.write(move |db| {
            let value = at.millis().to_string();
            Ok(db.prepare_cached(UPSERT_SETTING)?.execute(params![PROBE_SETTING, value]).map(drop)?)
        })
        .await
    }
}

const UPSERT_SETTING: &str =
    "INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value";
