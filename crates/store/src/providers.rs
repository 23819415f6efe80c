//! Versioned settings of providers; the newest version is in effect. The meaning of each setting is defined
//! elsewhere. Secrets are not among the settings: they are encrypted (see `seal`), and the settings contain a
//! mask in their place.

use rusqlite::types::{FromSql, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Row, ToSql, params};
use serde_json::{Map, Value};

use crate::error::Error;
use crate::seal::SealedSecrets;
use crate::size_limits::{self, MAX_SETTINGS_BYTES, MAX_WORD_BYTES};
use crate::store::Store;
use crate::time::Timestamp;

/// Maximum number of versions kept per provider.
const MAX_VERSIONS: i64 = 100;
const COLUMNS: &str = "provider, version, json, instead, sealed, actor, changed_ms";

/// One version of a provider's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderVersion {
    /// Name of the provider.
    pub provider: String,
    /// Version number, ascending.
    pub version: u32,
    /// The settings of this version.
    pub content: ProviderContent,
    /// Actor who set them.
    pub actor: String,
    /// When they were set.
    pub changed: Timestamp,
}

/// Content of one version of a provider's settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProviderContent {
    /// The settings, with a mask in place of each secret; `None` removes the provider's configuration.
    pub settings: Option<Map<String, Value>>,
    /// Names of the providers to fall back to while this one fails.
    pub fallbacks: Vec<String>,
    /// The encrypted secrets.
    pub sealed: Option<SealedSecrets>,
}

impl Store {
    /// Adds a version and returns its number. Keeps the newest hundred versions.
    ///
    /// # Errors
    /// The settings are longer than 64 KB.
    pub async fn add_provider_version(
        &self,
        provider: &str,
        content: ProviderContent,
        actor: &str,
        at: Timestamp,
    ) -> Result<u32, Error> {
        let provider = size_limits::check_text("provider", provider.to_owned(), MAX_WORD_BYTES)?;
        let actor = size_limits::check_text("actor", actor.to_owned(), MAX_WORD_BYTES)?;
        let ProviderContent { settings, fallbacks: instead, sealed } = content;
        let json = settings
            .map(|settings| size_limits::encode_json("settings", &settings, MAX_SETTINGS_BYTES))
            .transpose()?;
        let instead = size_limits::encode_json("instead", &instead, MAX_SETTINGS_BYTES)?;
        if let Some(SealedSecrets(bytes)) = &sealed
            && bytes.len() > MAX_SETTINGS_BYTES
        {
            return Err(Error::TooLarge { field: "settings", bytes: bytes.len(), limit: MAX_SETTINGS_BYTES });
        }
        self.write(move |db| {
            let newest = "SELECT coalesce(max(version), 0) FROM provider_versions WHERE provider = ?";
            let version = db.query_row(newest, [&provider], |row| row.get::<_, u32>(0))? + 1;
            let sql = format!("INSERT INTO provider_versions ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)");
            db.execute(&sql, params![provider, version, json, instead, sealed, actor, at])?;
            let old = "DELETE FROM provider_versions WHERE provider = ? AND version <= ?";
            db.execute(old, params![provider, i64::from(version) - MAX_VERSIONS])?;
            Ok(version)
        })
        .await
    }

    /// Returns the newest version of every provider that has one.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn providers(&self) -> Result<Vec<ProviderVersion>, Error> {
        let sql = format!(
            "SELECT {COLUMNS} FROM provider_versions AS one WHERE version = \
             (SELECT max(version) FROM provider_versions WHERE provider = one.provider) ORDER BY provider"
        );
        self.rows(sql, [], from_row).await
    }

    /// Returns all versions of a provider's settings, newest first.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn provider_versions(&self, provider: &str) -> Result<Vec<ProviderVersion>, Error> {
        let sql = format!("SELECT {COLUMNS} FROM provider_versions WHERE provider = ? ORDER BY version DESC");
        self.rows(sql, [provider.to_owned()], from_row).await
    }

    /// Returns one version of a provider's settings.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn provider_version(
        &self,
        provider: &str,
        version: u32,
    ) -> Result<Option<ProviderVersion>, Error> {
        let sql = format!("SELECT {COLUMNS} FROM provider_versions WHERE provider = ? AND version = ?");
        self.row(sql, (provider.to_owned(), version), from_row).await
    }
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<ProviderVersion> {
    let parsed = |column, text: String| {
        serde_json::from_str(&text).map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error.into())
        })
    };
    let settings: Option<Value> = row.get::<_, Option<String>>(2)?.map(|text| parsed(2, text)).transpose()?;
    let instead = parsed(3, row.get(3)?)?;
    let names = |value: Value| value.as_str().map(str::to_owned);
    let content = ProviderContent {
        settings: settings.map(|settings| settings.as_object().cloned().unwrap_or_default()),
        fallbacks: instead.as_array().cloned().unwrap_or_default().into_iter().filter_map(names).collect(),
        sealed: row.get(4)?,
    };
    Ok(ProviderVersion {
        provider: row.get(0)?,
        version: row.get(1)?,
        content,
        actor: row.get(5)?,
        changed: row.get(6)?,
    })
}

impl ToSql for SealedSecrets {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.0.as_slice().into())
    }
}

impl FromSql for SealedSecrets {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Vec::<u8>::column_result(value).map(Self)
    }
}
