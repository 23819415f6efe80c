//! API keys: shown once, stored as a digest.
//!
//! A key has the form `bj_<id>_<256 random bits>`. The id is looked up in the database, then the digest of
//! the whole key is compared in constant time.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{Error, ObjectKind, map_missing_tenant};
use crate::id::{KeyId, base32, is_digits};
use crate::name::TenantName;
use crate::scope::{Scope, Scopes};
use crate::secret::{Digest, KeySecret, random_bytes};
use crate::size_limits::{self, MAX_WORD_BYTES};
use crate::store::Store;
use crate::time::Timestamp;

/// Digits of one half of a key's secret part.
const SECRET_HALF_DIGITS: u32 = 26;
/// Resolution of the time of last use: not every request is worth a write.
const LAST_USED_RESOLUTION: Duration = Duration::from_secs(60);
/// How long a revoked or expired key is still listed.
const INVALID_KEY_RETENTION: Duration = Duration::from_secs(90 * 24 * 3_600);
/// Maximum number of keys of one tenant.
const MAX_KEYS: i64 = 1_000;

const COLUMNS: &str = "id, tenant, label, scopes, created_ms, expires_ms, last_used_ms, revoked_ms";

/// Metadata of a key: everything except its secret. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Key")]
pub struct KeyRecord {
    /// Key id, the public part of the key.
    pub id: KeyId,
    /// Tenant of the key.
    pub tenant: TenantName,
    /// Label for people.
    pub label: String,
    /// Scopes of the key.
    #[schemars(with = "Vec<Scope>")]
    pub scopes: Scopes,
    /// Creation time.
    pub created: Timestamp,
    /// Expiry time; null if it never expires.
    pub expires: Option<Timestamp>,
    /// Time of last use, to the minute; null if never used.
    pub last_used: Option<Timestamp>,
    /// Revocation time; null while valid.
    pub revoked: Option<Timestamp>,
}

/// A new key with its text, which is shown only once.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// The stored record.
    pub record: KeyRecord,
    /// Text of the whole key.
    pub secret: KeySecret,
}

/// A verified key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedKey {
    /// Id of the key.
    pub key: KeyId,
    /// Tenant that the key belongs to.
    pub tenant: TenantName,
    /// Permissions of the key.
    pub scopes: Scopes,
}

impl Store {
    /// Creates a key.
    ///
    /// # Errors
    /// The tenant does not exist or has 1,000 keys, or the label is too long.
    pub async fn add_key(
        &self,
        tenant: &TenantName,
        label: &str,
        scopes: Scopes,
        expires: Option<Timestamp>,
        at: Timestamp,
    ) -> Result<NewKey, Error> {
        let label = size_limits::check_text("label", label.to_owned(), MAX_WORD_BYTES)?;
        let (id, secret) = generate_key()?;
        let tenant = tenant.clone();
        let record =
            KeyRecord { id, tenant, label, scopes, created: at, expires, last_used: None, revoked: None };
        let (stored, hash) = (record.clone(), Digest::compute(secret.reveal().as_bytes()));
        self.write(move |db| insert(db, &stored, &hash)).await?;
        Ok(NewKey { record, secret })
    }

    /// Creates a successor with the same label, scopes and expiry; the old key stays valid until `old_until`
    /// at most.
    ///
    /// # Errors
    /// The tenant has no such key, or the key is no longer valid.
    pub async fn rotate_key(
        &self,
        tenant: &TenantName,
        id: &KeyId,
        old_until: Timestamp,
        at: Timestamp,
    ) -> Result<NewKey, Error> {
        let (new_id, secret) = generate_key()?;
        let hash = Digest::compute(secret.reveal().as_bytes());
        let (tenant, id) = (tenant.clone(), id.clone());
        let successor = move |db: &Connection| {
            let old = find(db, &tenant, &id)?.filter(|old| is_valid(old.revoked, old.expires, at));
            let old = old.ok_or(Error::NotFound(ObjectKind::Key))?;
            let record = KeyRecord { id: new_id.clone(), created: at, last_used: None, ..old };
            insert(db, &record, &hash)?;
            let end = record.expires.map_or(old_until, |end| end.min(old_until));
            db.execute("UPDATE keys SET expires_ms = ?2 WHERE id = ?1", params![id, end])?;
            Ok(record)
        };
        let record = self.write(successor).await?;
        Ok(NewKey { record, secret })
    }

    /// Revokes a key, immediately and permanently.
    ///
    /// # Errors
    /// The tenant has no such key.
    pub async fn revoke_key(&self, tenant: &TenantName, id: &KeyId, at: Timestamp) -> Result<(), Error> {
        let sql = "UPDATE keys SET revoked_ms = coalesce(revoked_ms, ?3) WHERE tenant = ?1 AND id = ?2";
        self.change_row(sql, (tenant.clone(), id.clone(), at), ObjectKind::Key).await
    }

    /// Returns a tenant's keys, including those no longer valid.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn keys(&self, tenant: &TenantName) -> Result<Vec<KeyRecord>, Error> {
        let sql = format!("SELECT {COLUMNS} FROM keys WHERE tenant = ? ORDER BY created_ms DESC, id");
        self.rows(sql, [tenant.clone()], from_row).await
    }

    /// Verifies a presented key. Returns `None` unless the key is known, not revoked and not expired, and its
    /// tenant is not disabled.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn verify_key(&self, presented: &str, at: Timestamp) -> Result<Option<VerifiedKey>, Error> {
        let Some(id) = parse_key_id(presented) else { return Ok(None) };
        let hash = Digest::compute(presented.as_bytes());
        let Some(record) = self.read(move |db| find_verified(db, &id, &hash, at)).await? else {
            return Ok(None);
        };
        if record.last_used.is_none_or(|used| used.plus(LAST_USED_RESOLUTION) <= at) {
            let id = record.id.clone();
            self.write_best_effort(move |db| {
                let sql = "UPDATE keys SET last_used_ms = ?2 WHERE id = ?1";
                Ok(db.prepare_cached(sql)?.execute(params![id, at]).map(drop)?)
            });
        }
        Ok(Some(VerifiedKey { key: record.id, tenant: record.tenant, scopes: record.scopes }))
    }

    /// Returns whether a key is still valid, by the rules of [`Store::verify_key`].
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn is_key_valid(&self, id: &KeyId, at: Timestamp) -> Result<bool, Error> {
        let id = id.clone();
        self.read(move |db| Ok(find_valid(db, &id, at)?.is_some())).await
    }
}

/// Generates a new random key.
fn generate_key() -> Result<(KeyId, KeySecret), Error> {
    let id = KeyId::generate()?;
    let half = || random_bytes().map(|bytes| base32(u128::from_be_bytes(bytes), SECRET_HALF_DIGITS));
    let text = format!("{id}_{}{}", half()?, half()?);
    Ok((id, KeySecret::new(text)))
}

/// Returns the id in a key, or `None` if the text does not have the form of a key.
fn parse_key_id(presented: &str) -> Option<KeyId> {
    let (id, secret) = presented.rsplit_once('_')?;
    is_digits(secret, 2 * SECRET_HALF_DIGITS).then(|| id.parse().ok()).flatten()
}

fn is_valid(revoked: Option<Timestamp>, expires: Option<Timestamp>, at: Timestamp) -> bool {
    revoked.is_none() && expires.is_none_or(|end| at < end)
}

fn insert(db: &Connection, key: &KeyRecord, hash: &Digest) -> Result<(), Error> {
    delete_old_invalid_keys(db, &key.tenant, key.created)?;
    let count: i64 =
        db.query_row("SELECT count(*) FROM keys WHERE tenant = ?", [&key.tenant], |row| row.get(0))?;
    if count >= MAX_KEYS {
        return Err(Error::invalid("keys", format!("the tenant already has {MAX_KEYS}; revoke some")));
    }
    let sql = "INSERT INTO keys (id, tenant, hash, label, scopes, created_ms, expires_ms) \
               VALUES (?, ?, ?, ?, ?, ?, ?)";
    let values = params![key.id, key.tenant, hash, key.label, key.scopes, key.created, key.expires];
    db.execute(sql, values).map(drop).map_err(map_missing_tenant)
}

fn delete_old_invalid_keys(db: &Connection, tenant: &TenantName, at: Timestamp) -> Result<(), Error> {
    let sql = "DELETE FROM keys WHERE tenant = ?1 AND (revoked_ms < ?2 OR expires_ms < ?2)";
    Ok(db.execute(sql, params![tenant, at.minus(INVALID_KEY_RETENTION)]).map(drop)?)
}

fn find(db: &Connection, tenant: &TenantName, id: &KeyId) -> Result<Option<KeyRecord>, Error> {
    let sql = format!("SELECT {COLUMNS} FROM keys WHERE tenant = ? AND id = ?");
    Ok(db.query_row(&sql, params![tenant, id], from_row).optional()?)
}

fn find_verified(
    db: &Connection,
    id: &KeyId,
    hash: &Digest,
    at: Timestamp,
) -> Result<Option<KeyRecord>, Error> {
    Ok(find_valid(db, id, at)?.filter(|(_, stored)| stored.matches(hash)).map(|(key, _)| key))
}

/// Returns a valid key and the digest of its text.
fn find_valid(db: &Connection, id: &KeyId, at: Timestamp) -> Result<Option<(KeyRecord, Digest)>, Error> {
    let sql = "SELECT k.id, k.tenant, k.label, k.scopes, k.created_ms, k.expires_ms, k.last_used_ms, \
               k.revoked_ms, k.hash FROM keys k JOIN tenants t ON t.name = k.tenant \
               WHERE k.id = ? AND t.disabled_ms IS NULL";
    let mut statement = db.prepare_cached(sql)?;
    let found = statement.query_row([id], |row| Ok((from_row(row)?, row.get::<_, Digest>(8)?))).optional()?;
    Ok(found.filter(|(key, _)| is_valid(key.revoked, key.expires, at)))
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<KeyRecord> {
    Ok(KeyRecord {
        id: row.get(0)?,
        tenant: row.get(1)?,
        label: row.get(2)?,
        scopes: row.get(3)?,
        created: row.get(4)?,
        expires: row.get(5)?,
        last_used: row.get(6)?,
        revoked: row.get(7)?,
    })
}
