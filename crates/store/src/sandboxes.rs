//! Records of sandboxes, which outlive the server: their settings, states and ends.

use rusqlite::{Connection, Row, params};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::{Error, ObjectKind, map_missing_tenant};
use crate::id::SandboxId;
use crate::name::TenantName;
use crate::size_limits::{self, MAX_SETTINGS_BYTES};
use crate::store::Store;
use crate::text_enum::text_enum;
use crate::time::Timestamp;

text_enum! {
    /// State of a sandbox.
    SandboxState, "state" {
        /// Being created.
        Starting = "starting",
        /// Running.
        Running = "running",
        /// Alive, but frozen.
        Paused = "paused",
        /// Running, but nothing may start or write. Only a live sandbox is halted: the database has `running`.
        Halted = "halted",
        /// Gone.
        Ended = "ended",
    }
}

text_enum! {
    /// Why a sandbox ended.
    SandboxEnd, "ended_because" {
        /// Closed on request.
        Closed = "closed",
        /// Was not used for its timeout, or reached the end of its life.
        Expired = "expired",
        /// Unused for longer than the server's idle timeout; only in older records.
        Idle = "idle",
        /// Could not be created, or broke.
        Failed = "failed",
        /// The server died.
        Interrupted = "interrupted",
    }
}

/// A sandbox that is about to be created.
#[derive(Debug, Clone)]
pub struct NewSandbox {
    /// Id of the sandbox.
    pub id: SandboxId,
    /// Owner of the sandbox.
    pub tenant: TenantName,
    /// Image, profile, limits and other settings. Environment variables appear only by name, as `env_names`,
    /// never with their values.
    pub settings: Map<String, Value>,
    /// Metadata that the caller chose.
    pub metadata: Map<String, Value>,
    /// When the sandbox was requested.
    pub created: Timestamp,
    /// When the sandbox expires.
    pub expires: Option<Timestamp>,
}

/// A recorded sandbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SandboxRecord {
    /// Id of the sandbox.
    pub id: SandboxId,
    /// Owner of the sandbox.
    pub tenant: TenantName,
    /// State of the sandbox.
    pub state: SandboxState,
    /// Image, profile, limits and other settings.
    pub settings: Map<String, Value>,
    /// Metadata that the caller chose.
    pub metadata: Map<String, Value>,
    /// When the sandbox was requested.
    pub created: Timestamp,
    /// When its state last changed.
    pub changed: Timestamp,
    /// When the sandbox expires.
    pub expires: Option<Timestamp>,
    /// When it ended, and by which kind of end.
    pub ended: Option<(Timestamp, SandboxEnd)>,
    /// Why it ended, for people.
    pub ended_reason: Option<String>,
}

impl SandboxRecord {
    /// Returns why the sandbox ended, or `None` if it lives. Older records only have the kind of end.
    pub fn end_reason(&self) -> Option<&str> {
        let (_, because) = self.ended?;
        Some(self.ended_reason.as_deref().unwrap_or(because.as_str()))
    }
}

/// Which sandboxes a list contains.
#[derive(Debug, Clone, Default)]
pub struct SandboxFilter {
    /// Only those in one of these states; empty for all states.
    pub states: Vec<SandboxState>,
    /// Only those with all of these metadata values; numbers and booleans are compared as text.
    pub metadata: Vec<(String, String)>,
}

/// A page of sandboxes, newest first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SandboxPage {
    /// The sandboxes.
    pub sandboxes: Vec<SandboxRecord>,
    /// Cursor of the next page; `None` on the last page.
    pub next_cursor: Option<SandboxId>,
}

/// Request fields that carry the tenant's input and must not be stored.
const NEVER_STORED: [&str; 10] = [
    "env",
    "secrets",
    "code",
    "code_base64",
    "command",
    "arguments",
    "stdin",
    "stdin_base64",
    "files",
    "content",
];
const COLUMNS: &str = "id, tenant, state, settings, metadata, created_ms, changed_ms, expires_ms, ended_ms, \
                       ended_because, ended_reason";
/// Maximum length of a stored reason in bytes; longer ones are cut.
const MAX_REASON_BYTES: usize = 512;

impl Store {
    /// Records a sandbox as starting.
    ///
    /// # Errors
    /// The tenant does not exist, or settings or metadata are too long or contain a field that must not be
    /// stored.
    pub async fn add_sandbox(&self, new: NewSandbox) -> Result<(), Error> {
        let (settings, metadata) =
            (encode_settings(&new.settings)?, size_limits::encode_metadata(&new.metadata)?);
        self.write(move |db| {
            let sql = "INSERT INTO sandboxes (tenant, id, state, settings, metadata, created_ms, changed_ms, \
                       expires_ms) VALUES (?, ?, 'starting', ?, ?, ?6, ?6, ?5)";
            let values = params![new.tenant, new.id, settings, metadata, new.expires, new.created];
            db.prepare_cached(sql)?.execute(values).map(drop).map_err(map_missing_tenant)
        })
        .await
    }

    /// Records that a sandbox is running, with its final settings.
    ///
    /// # Errors
    /// The sandbox does not exist or has ended, or settings are too long or contain a field that must not be
    /// stored.
    pub async fn mark_sandbox_running(
        &self,
        tenant: &TenantName,
        id: &SandboxId,
        settings: &Map<String, Value>,
        at: Timestamp,
    ) -> Result<(), Error> {
        let settings = encode_settings(settings)?;
        let sql = "UPDATE sandboxes SET state = 'running', settings = ?3, changed_ms = ?4 \
                   WHERE tenant = ?1 AND id = ?2 AND ended_ms IS NULL";
        self.record_change(sql, (tenant.clone(), id.clone(), settings, at), ObjectKind::Sandbox).await
    }

    /// Records the state of a live sandbox.
    ///
    /// # Errors
    /// The sandbox does not exist or has ended, or the state is `Ended`, which requires a reason, or `Halted`.
    pub async fn set_sandbox_state(
        &self,
        tenant: &TenantName,
        id: &SandboxId,
        state: SandboxState,
        at: Timestamp,
    ) -> Result<(), Error> {
        match state {
            SandboxState::Ended => return Err(Error::invalid("state", "ending a sandbox requires a reason")),
            SandboxState::Halted => return Err(Error::invalid("state", "a halt is never stored")),
            SandboxState::Starting | SandboxState::Running | SandboxState::Paused => {}
        }
        let sql = "UPDATE sandboxes SET state = ?3, changed_ms = ?4 \
                   WHERE tenant = ?1 AND id = ?2 AND ended_ms IS NULL";
        self.record_change(sql, (tenant.clone(), id.clone(), state, at), ObjectKind::Sandbox).await
    }

    /// Records the new network access of a sandbox.
    ///
    /// # Errors
    /// The sandbox does not exist or has ended, or the value is too long.
    pub async fn set_sandbox_network(
        &self,
        tenant: &TenantName,
        id: &SandboxId,
        network: &Map<String, Value>,
    ) -> Result<(), Error> {
        let network = size_limits::encode_json("network", network, MAX_SETTINGS_BYTES)?;
        let sql = "UPDATE sandboxes SET settings = json_set(settings, '$.network', json(?3)) \
                   WHERE tenant = ?1 AND id = ?2 AND ended_ms IS NULL";
        self.record_change(sql, (tenant.clone(), id.clone(), network), ObjectKind::Sandbox).await
    }

    /// Records the end of a sandbox, with a reason for people; the first end wins.
    ///
    /// # Errors
    /// The sandbox does not exist or has ended.
    pub async fn end_sandbox(
        &self,
        tenant: &TenantName,
        id: &SandboxId,
        because: SandboxEnd,
        reason: &str,
        at: Timestamp,
    ) -> Result<(), Error> {
        let sql = "UPDATE sandboxes SET state = 'ended', ended_because = ?3, ended_reason = ?4, ended_ms = ?5, \
                   changed_ms = ?5, expires_ms = NULL WHERE tenant = ?1 AND id = ?2 AND ended_ms IS NULL";
        let reason = reason[..reason.floor_char_boundary(MAX_REASON_BYTES)].to_owned();
        self.record_change(sql, (tenant.clone(), id.clone(), because, reason, at), ObjectKind::Sandbox).await
    }

    /// Marks all sandboxes that an earlier server left alive as interrupted, and returns their ids. Call at
    /// startup.
    ///
    /// # Errors
    /// The database cannot be written.
    pub async fn interrupt_sandboxes(&self, at: Timestamp) -> Result<Vec<SandboxId>, Error> {
        self.write_waiting(0, move |db| {
            let sql = "UPDATE sandboxes SET state = 'ended', ended_because = 'interrupted', ended_reason = \
                       'its server stopped unexpectedly', ended_ms = ?1, changed_ms = ?1, expires_ms = NULL \
                       WHERE ended_ms IS NULL RETURNING id";
            let mut statement = db.prepare(sql)?;
            Ok(statement.query_map([at], |row| row.get(0))?.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Returns a sandbox, whether live or ended, or `None` for an unknown id or another tenant's sandbox.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn sandbox(&self, tenant: &TenantName, id: &SandboxId) -> Result<Option<SandboxRecord>, Error> {
        let sql = format!("SELECT {COLUMNS} FROM sandboxes WHERE tenant = ? AND id = ?");
        self.row(sql, (tenant.clone(), id.clone()), from_row).await
    }

    /// Returns a tenant's sandboxes below `cursor`, newest first.
    ///
    /// # Errors
    /// `limit` is not from 1 to 200, the filter has more than 8 metadata values, or the database cannot be
    /// read.
    pub async fn sandboxes(
        &self,
        tenant: &TenantName,
        filter: SandboxFilter,
        cursor: Option<SandboxId>,
        limit: u32,
    ) -> Result<SandboxPage, Error> {
        let (tenant, limit) = (tenant.clone(), size_limits::page_limit(limit)?);
        size_limits::check_metadata_filter(&filter.metadata)?;
        self.read(move |db| find_page(db, &tenant, &filter, cursor.as_ref(), limit)).await
    }

    /// Returns how many of a tenant's sandboxes are live.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn count_live_sandboxes(&self, tenant: &TenantName) -> Result<u64, Error> {
        let tenant = tenant.clone();
        self.read(move |db| {
            let sql = "SELECT count(*) FROM sandboxes WHERE tenant = ? AND ended_ms IS NULL";
            Ok(db.prepare_cached(sql)?.query_row([&tenant], |row| row.get::<_, i64>(0))?.unsigned_abs())
        })
        .await
    }
}

fn encode_settings(settings: &Map<String, Value>) -> Result<String, Error> {
    match settings.keys().find(|name| NEVER_STORED.contains(&name.as_str())) {
        Some(name) => Err(Error::invalid("settings", format!("'{name}' is input and is never stored"))),
        None => size_limits::encode_json("settings", settings, MAX_SETTINGS_BYTES),
    }
}

fn find_page(
    db: &Connection,
    tenant: &TenantName,
    filter: &SandboxFilter,
    cursor: Option<&SandboxId>,
    limit: u32,
) -> Result<SandboxPage, Error> {
    let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
    let wanted = Value::from_iter(filter.metadata.iter().cloned()).to_string();
    // No state is a substring of another one, and '~' sorts after every id.
    let sql = format!(
        "SELECT {COLUMNS} FROM sandboxes WHERE tenant = ?1 AND (?2 = '' OR instr(?2, state) > 0) AND id < ?3 \
         AND NOT EXISTS (SELECT 1 FROM json_each(?4) wanted WHERE NOT EXISTS ( \
             SELECT 1 FROM json_each(sandboxes.metadata) has WHERE has.key = wanted.key AND wanted.value = \
             CASE has.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(has.atom AS TEXT) END)) \
         ORDER BY id DESC LIMIT ?5"
    );
    let below = cursor.map_or("~", SandboxId::as_str);
    let mut statement = db.prepare_cached(&sql)?;
    let rows = statement.query_map(params![tenant, states.join(","), below, wanted, limit + 1], from_row)?;
    let mut sandboxes = rows.collect::<Result<Vec<_>, _>>()?;
    let full = sandboxes.len() > limit as usize;
    sandboxes.truncate(limit as usize);
    let next_cursor = sandboxes.last().filter(|_| full).map(|last| last.id.clone());
    Ok(SandboxPage { sandboxes, next_cursor })
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<SandboxRecord> {
    let object = |text: String| serde_json::from_str(&text).unwrap_or_default();
    let ended: (Option<Timestamp>, Option<SandboxEnd>) = (row.get(8)?, row.get(9)?);
    Ok(SandboxRecord {
        id: row.get(0)?,
        tenant: row.get(1)?,
        state: row.get(2)?,
        settings: object(row.get(3)?),
        metadata: object(row.get(4)?),
        created: row.get(5)?,
        changed: row.get(6)?,
        expires: row.get(7)?,
        ended: ended.0.zip(ended.1),
        ended_reason: row.get(10)?,
    })
}
