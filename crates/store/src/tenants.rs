//! Tenants and their quotas.

use rusqlite::{Connection, OptionalExtension, Row, params};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ObjectKind, require_changed_row};
use crate::name::TenantName;
use crate::size_limits::{self, MAX_WORD_BYTES};
use crate::store::Store;
use crate::time::Timestamp;

/// Quotas of a tenant; null means the server's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Quotas {
    /// Concurrent executions.
    pub concurrency: Option<u32>,
    /// Live sandboxes.
    pub sandboxes: Option<u32>,
    /// CPU seconds per day (UTC).
    pub cpu_seconds_per_day: Option<u64>,
    /// Memory limits of all running executions and sandboxes together, in bytes.
    pub memory_bytes: Option<u64>,
    /// Size of all volumes and snapshots together, in bytes.
    pub disk_bytes: Option<u64>,
}

/// A tenant: an owner of executions, sandboxes and keys. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Tenant {
    /// Name of the tenant, which never changes.
    pub name: TenantName,
    /// Quotas of the tenant.
    pub quotas: Quotas,
    /// Creation time.
    pub created: Timestamp,
    /// Time it was disabled, since when its keys are refused; null while enabled.
    pub disabled: Option<Timestamp>,
    /// Time its deletion began; null unless it is being deleted.
    pub deleting: Option<Timestamp>,
    /// Size of all stored results in bytes.
    pub stored_bytes: u64,
    /// Policy floor: a policy that always applies to the tenant's requests, beside the one that they select;
    /// the strictest decides.
    pub policy: Option<String>,
    /// Default provider of the tenant's requests; null for the server's default.
    pub provider: Option<String>,
}

const COLUMNS: &str = "name, concurrency, sandboxes, cpu_seconds_per_day, memory_bytes, disk_bytes, created_ms, \
                       disabled_ms, stored_bytes, policy, provider, deleting_ms";
/// Maximum number of tenants; a list returns all of them at once.
const MAX_TENANTS: i64 = 10_000;

impl Store {
    /// Adds a tenant.
    ///
    /// # Errors
    /// The name is taken, or there are already 10,000.
    pub async fn add_tenant(&self, name: &TenantName, quotas: Quotas, at: Timestamp) -> Result<(), Error> {
        let (name, [cpu, memory, disk]) = (name.clone(), large_quotas(&quotas)?);
        self.write(move |db| {
            let count: i64 = db.query_row("SELECT count(*) FROM tenants", [], |row| row.get(0))?;
            if count >= MAX_TENANTS {
                return Err(Error::invalid(
                    "tenant",
                    format!("there are already {MAX_TENANTS}; remove some"),
                ));
            }
            let sql = "INSERT INTO tenants (name, concurrency, sandboxes, cpu_seconds_per_day, memory_bytes, \
                       disk_bytes, created_ms) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";
            let values = params![name, quotas.concurrency, quotas.sandboxes, cpu, memory, disk, at];
            require_changed_row(db.prepare_cached(sql)?.execute(values)?, Error::Exists(ObjectKind::Tenant))
        })
        .await
    }

    /// Changes a tenant's quotas, atomically.
    ///
    /// # Errors
    /// The tenant does not exist, or a quota is too large.
    pub async fn change_quotas(
        &self,
        name: &TenantName,
        change: impl Fn(&mut Quotas) + Send + 'static,
    ) -> Result<(), Error> {
        let name = name.clone();
        self.write(move |db| {
            let mut quotas = find(db, &name)?.ok_or(Error::NotFound(ObjectKind::Tenant))?.quotas;
            change(&mut quotas);
            let [cpu, memory, disk] = large_quotas(&quotas)?;
            let sql = "UPDATE tenants SET concurrency = ?2, sandboxes = ?3, cpu_seconds_per_day = ?4, \
                       memory_bytes = ?5, disk_bytes = ?6 WHERE name = ?1";
            let values = params![name, quotas.concurrency, quotas.sandboxes, cpu, memory, disk];
            Ok(db.prepare_cached(sql)?.execute(values).map(drop)?)
        })
        .await
    }

    /// Sets a tenant's policy floor.
    ///
    /// # Errors
    /// The tenant does not exist, or the name is too long.
    pub async fn set_tenant_policy(&self, name: &TenantName, policy: &str) -> Result<(), Error> {
        let policy = size_limits::check_text("policy", policy.to_owned(), MAX_WORD_BYTES)?;
        let sql = "UPDATE tenants SET policy = ?2 WHERE name = ?1";
        self.change_row(sql, (name.clone(), policy), ObjectKind::Tenant).await
    }

    /// Sets the provider of a tenant's requests that name none; `None` for the server's default.
    ///
    /// # Errors
    /// The tenant does not exist, or the name is too long.
    pub async fn set_tenant_provider(
        &self,
        name: &TenantName,
        provider: Option<String>,
    ) -> Result<(), Error> {
        let provider = provider
            .map(|provider| size_limits::check_text("provider", provider, MAX_WORD_BYTES))
            .transpose()?;
        let sql = "UPDATE tenants SET provider = ?2 WHERE name = ?1";
        self.change_row(sql, (name.clone(), provider), ObjectKind::Tenant).await
    }

    /// Disables a tenant, so that its keys are refused, or enables it again (`None`).
    ///
    /// # Errors
    /// The tenant does not exist, or is being deleted.
    pub async fn disable_tenant(&self, name: &TenantName, since: Option<Timestamp>) -> Result<(), Error> {
        let name = name.clone();
        self.write(move |db| {
            let tenant = find(db, &name)?.ok_or(Error::NotFound(ObjectKind::Tenant))?;
            if tenant.deleting.is_some() {
                return Err(Error::BeingDeleted(ObjectKind::Tenant));
            }
            db.execute("UPDATE tenants SET disabled_ms = ?2 WHERE name = ?1", params![name, since])?;
            Ok(())
        })
        .await
    }

    /// Returns a tenant.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn tenant(&self, name: &TenantName) -> Result<Option<Tenant>, Error> {
        let name = name.clone();
        self.read(move |db| find(db, &name)).await
    }

    /// Returns all tenants, ordered by name.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn tenants(&self) -> Result<Vec<Tenant>, Error> {
        self.rows(format!("SELECT {COLUMNS} FROM tenants ORDER BY name"), [], from_row).await
    }
}

pub(crate) fn find(db: &Connection, name: &TenantName) -> Result<Option<Tenant>, Error> {
    let sql = format!("SELECT {COLUMNS} FROM tenants WHERE name = ?");
    Ok(db.prepare_cached(&sql)?.query_row([name], from_row).optional()?)
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<Tenant> {
    let quotas = Quotas {
        concurrency: row.get(1)?,
        sandboxes: row.get(2)?,
        cpu_seconds_per_day: row.get::<_, Option<i64>>(3)?.map(i64::unsigned_abs),
        memory_bytes: row.get::<_, Option<i64>>(4)?.map(i64::unsigned_abs),
        disk_bytes: row.get::<_, Option<i64>>(5)?.map(i64::unsigned_abs),
    };
    Ok(Tenant {
        name: row.get(0)?,
        quotas,
        created: row.get(6)?,
        disabled: row.get(7)?,
        stored_bytes: row.get::<_, i64>(8)?.unsigned_abs(),
        policy: row.get(9)?,
        provider: row.get(10)?,
        deleting: row.get(11)?,
    })
}

fn large_quotas(quotas: &Quotas) -> Result<[Option<i64>; 3], Error> {
    let count =
        |field, value: Option<u64>| value.map(|value| size_limits::to_sql_integer(field, value)).transpose();
    Ok([
        count("cpu_seconds_per_day", quotas.cpu_seconds_per_day)?,
        count("memory_bytes", quotas.memory_bytes)?,
        count("disk_bytes", quotas.disk_bytes)?,
    ])
}
