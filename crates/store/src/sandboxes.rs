//! Sandboxes, as far as they outlive the server: what was there, and how it ended.

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::bound::{self, MAX_SETTINGS};
use crate::error::{Error, Kind, changed, owner_missing};
use crate::id::SandboxId;
use crate::name::TenantName;
use crate::store::Store;
use crate::time::Timestamp;
use crate::words::words;

words! {
    /// How a sandbox stands.
    SandboxState, "state" {
        /// Being made.
        Starting = "starting",
        /// Alive.
        Running = "running",
        /// Alive, without processor time.
        Paused = "paused",
        /// Gone.
        Ended = "ended",
    }
}

words! {
    /// Why a sandbox is gone.
    SandboxEnd, "ended_because" {
        /// Somebody asked for it.
        Closed = "closed",
        /// Its life time was over.
        Expired = "expired",
        /// Nobody had used it for long.
        Idle = "idle",
        /// It could not be made, or broke.
        Failed = "failed",
        /// The server died.
        Interrupted = "interrupted",
    }
}

/// A sandbox about to be made.
#[derive(Debug, Clone)]
pub struct NewSandbox {
    /// Its name.
    pub id: SandboxId,
    /// Whose it is.
    pub tenant: TenantName,
    /// Image, profile, limits and so on; the names of environment variables as `env_names`, never their values.
    pub settings: Map<String, Value>,
    /// The caller's own.
    pub metadata: Map<String, Value>,
    /// When it was asked for.
    pub created: Timestamp,
    /// When it ends by itself.
    pub expires: Option<Timestamp>,
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sandbox {
    /// Its name.
    pub id: SandboxId,
    /// Whose it is.
    pub tenant: TenantName,
    /// How it stands.
    pub state: SandboxState,
    /// Image, profile, limits and so on.
    pub settings: Map<String, Value>,
    /// The caller's own.
    pub metadata: Map<String, Value>,
    /// When it was asked for.
    pub created: Timestamp,
    /// When its state last changed.
    pub changed: Timestamp,
    /// When it ends by itself.
    pub expires: Option<Timestamp>,
    /// When and why it ended.
    pub ended: Option<(Timestamp, SandboxEnd)>,
}

/// Which sandboxes a list shows.
#[derive(Debug, Clone, Default)]
pub struct SandboxFilter {
    /// That stand in one of these ways; none means in any.
    pub states: Vec<SandboxState>,
    /// With all of these in their metadata, numbers and truth values as text.
    pub metadata: Vec<(String, String)>,
}

/// Some sandboxes, newest first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SandboxPage {
    /// The sandboxes.
    pub sandboxes: Vec<Sandbox>,
    /// Where the next page begins; nothing at the end.
    pub next_cursor: Option<SandboxId>,
}

/// Fields of a request that are input of the tenant's and are not to outlive it.
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
                       ended_because";

impl Store {
    /// Records a sandbox as starting.
    ///
    /// # Errors
    /// There is no such tenant, settings or metadata are too long or carry what is never stored.
    pub async fn add_sandbox(&self, new: NewSandbox) -> Result<(), Error> {
        let (settings, metadata) = (settings(&new.settings)?, bound::metadata(&new.metadata)?);
        self.write(move |db| {
            let sql = "INSERT INTO sandboxes (tenant, id, state, settings, metadata, created_ms, changed_ms, \
                       expires_ms) VALUES (?, ?, 'starting', ?, ?, ?6, ?6, ?5)";
            let values = params![new.tenant, new.id, settings, metadata, new.expires, new.created];
            db.prepare_cached(sql)?.execute(values).map(drop).map_err(owner_missing)
        })
        .await
    }

    /// Records that a sandbox was made, and with what settings in the end.
    ///
    /// # Errors
    /// There is no such living sandbox, or settings are too long or carry what is never stored.
    pub async fn sandbox_runs(
        &self,
        tenant: &TenantName,
        id: &SandboxId,
        settings: &Map<String, Value>,
        at: Timestamp,
    ) -> Result<(), Error> {
        let settings = self::settings(settings)?;
        let sql = "UPDATE sandboxes SET state = 'running', settings = ?3, changed_ms = ?4 \
                   WHERE tenant = ?1 AND id = ?2 AND ended_ms IS NULL";
        let (tenant, id) = (tenant.clone(), id.clone());
        self.record(0, move |db| living(db.prepare_cached(sql)?.execute(params![tenant, id, settings, at])?))
            .await
    }

    /// Records how a living sandbox stands.
    ///
    /// # Errors
    /// There is no such living sandbox, or the state is its end, which needs a reason.
    pub async fn set_sandbox_state(
        &self,
        tenant: &TenantName,
        id: &SandboxId,
        state: SandboxState,
        at: Timestamp,
    ) -> Result<(), Error> {
        if state == SandboxState::Ended {
            return Err(Error::invalid("state", "an end needs a reason"));
        }
        let sql = "UPDATE sandboxes SET state = ?3, changed_ms = ?4 \
                   WHERE tenant = ?1 AND id = ?2 AND ended_ms IS NULL";
        let (tenant, id) = (tenant.clone(), id.clone());
        self.record(0, move |db| living(db.prepare_cached(sql)?.execute(params![tenant, id, state, at])?))
            .await
    }

    /// Records what a sandbox may reach from now on.
    ///
    /// # Errors
    /// There is no such living sandbox, or that is too long.
    pub async fn set_sandbox_network(
        &self,
        tenant: &TenantName,
        id: &SandboxId,
        network: &Map<String, Value>,
    ) -> Result<(), Error> {
        let network = bound::json("network", network, MAX_SETTINGS)?;
        let sql = "UPDATE sandboxes SET settings = json_set(settings, '$.network', json(?3)) \
                   WHERE tenant = ?1 AND id = ?2 AND ended_ms IS NULL";
        let (tenant, id) = (tenant.clone(), id.clone());
        self.record(0, move |db| living(db.prepare_cached(sql)?.execute(params![tenant, id, network])?)).await
    }

    /// Records when a living sandbox ends by itself.
    ///
    /// # Errors
    /// There is no such living sandbox.
    pub async fn set_sandbox_expiry(
        &self,
        tenant: &TenantName,
        id: &SandboxId,
        expires: Option<Timestamp>,
    ) -> Result<(), Error> {
        let sql = "UPDATE sandboxes SET expires_ms = ?3 WHERE tenant = ?1 AND id = ?2 AND ended_ms IS NULL";
        let (tenant, id) = (tenant.clone(), id.clone());
        self.write(move |db| living(db.prepare_cached(sql)?.execute(params![tenant, id, expires])?)).await
    }

    /// Records the end of a sandbox; the first one counts.
    ///
    /// # Errors
    /// There is no such living sandbox.
    pub async fn end_sandbox(
        &self,
        tenant: &TenantName,
        id: &SandboxId,
        because: SandboxEnd,
        at: Timestamp,
    ) -> Result<(), Error> {
        let sql = "UPDATE sandboxes SET state = 'ended', ended_because = ?3, ended_ms = ?4, changed_ms = ?4 \
                   WHERE tenant = ?1 AND id = ?2 AND ended_ms IS NULL";
        let (tenant, id) = (tenant.clone(), id.clone());
        self.record(0, move |db| living(db.prepare_cached(sql)?.execute(params![tenant, id, because, at])?))
            .await
    }

    /// At the start: what an earlier server left alive is gone. Says which they were, once.
    ///
    /// # Errors
    /// The database cannot write.
    pub async fn interrupt_sandboxes(&self, at: Timestamp) -> Result<Vec<SandboxId>, Error> {
        self.record(0, move |db| {
            let sql = "UPDATE sandboxes SET state = 'ended', ended_because = 'interrupted', ended_ms = ?1, \
                       changed_ms = ?1 WHERE ended_ms IS NULL RETURNING id";
            let mut statement = db.prepare(sql)?;
            Ok(statement.query_map([at], |row| row.get(0))?.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// One sandbox, also when it has ended. Another tenant's is not there.
    ///
    /// # Errors
    /// The database cannot answer.
    pub async fn sandbox(&self, tenant: &TenantName, id: &SandboxId) -> Result<Option<Sandbox>, Error> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.read(move |db| {
            let sql = format!("SELECT {COLUMNS} FROM sandboxes WHERE tenant = ? AND id = ?");
            Ok(db.prepare_cached(&sql)?.query_row(params![tenant, id], from_row).optional()?)
        })
        .await
    }

    /// The sandboxes of a tenant, newest first, from below `cursor` on.
    ///
    /// # Errors
    /// `limit` is not from 1 to 200, more than 8 values are looked for, or the database cannot answer.
    pub async fn sandboxes(
        &self,
        tenant: &TenantName,
        filter: SandboxFilter,
        cursor: Option<SandboxId>,
        limit: u32,
    ) -> Result<SandboxPage, Error> {
        let (tenant, limit) = (tenant.clone(), bound::page(limit)?);
        bound::metadata_filter(&filter.metadata)?;
        self.read(move |db| page(db, &tenant, &filter, cursor.as_ref(), limit)).await
    }

    /// How many sandboxes of a tenant are alive.
    ///
    /// # Errors
    /// The database cannot answer.
    pub async fn living_sandboxes(&self, tenant: &TenantName) -> Result<u64, Error> {
        let tenant = tenant.clone();
        self.read(move |db| {
            let sql = "SELECT count(*) FROM sandboxes WHERE tenant = ? AND ended_ms IS NULL";
            Ok(db.prepare_cached(sql)?.query_row([&tenant], |row| row.get::<_, i64>(0))?.unsigned_abs())
        })
        .await
    }
}

fn living(rows: usize) -> Result<(), Error> {
    changed(rows, Error::NotFound(Kind::Sandbox))
}

fn settings(settings: &Map<String, Value>) -> Result<String, Error> {
    match settings.keys().find(|name| NEVER_STORED.contains(&name.as_str())) {
        Some(name) => Err(Error::invalid("settings", format!("'{name}' is input and is never stored"))),
        None => bound::json("settings", settings, MAX_SETTINGS),
    }
}

fn page(
    db: &Connection,
    tenant: &TenantName,
    filter: &SandboxFilter,
    cursor: Option<&SandboxId>,
    limit: u32,
) -> Result<SandboxPage, Error> {
    let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
    let wanted = Value::from_iter(filter.metadata.iter().cloned()).to_string();
    // No state is a part of another's word, and no id is above '~'.
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

fn from_row(row: &Row<'_>) -> rusqlite::Result<Sandbox> {
    let object = |text: String| serde_json::from_str(&text).unwrap_or_default();
    let ended: (Option<Timestamp>, Option<SandboxEnd>) = (row.get(8)?, row.get(9)?);
    Ok(Sandbox {
        id: row.get(0)?,
        tenant: row.get(1)?,
        state: row.get(2)?,
        settings: object(row.get(3)?),
        metadata: object(row.get(4)?),
        created: row.get(5)?,
        changed: row.get(6)?,
        expires: row.get(7)?,
        ended: ended.0.zip(ended.1),
    })
}
