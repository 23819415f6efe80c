//! What tenants use: resources per day, and stored objects.

use rusqlite::{Connection, params};
use serde::Serialize;

use crate::error::{Error, map_missing_tenant};
use crate::name::TenantName;
use crate::size_limits;
use crate::store::Store;
use crate::tenants;
use crate::time::Day;
use crate::volumes;

/// A tenant's resource usage in one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DailyUsage {
    /// CPU time.
    pub cpu_ms: u64,
    /// Number of executions that ended.
    pub executions: u64,
}

/// Number of objects that a tenant owns, and their sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnedObjects {
    /// Stored executions.
    pub executions: u64,
    /// Size of their results in bytes.
    pub executions_bytes: u64,
    /// Volumes.
    pub volumes: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Sizes of all volumes and snapshots together, in bytes.
    pub disk_bytes: u64,
    /// Keys, including those no longer valid.
    pub keys: u64,
}

/// Maximum number of days in one answer: ten years.
const MAX_DAYS: u32 = 3_660;

impl Store {
    /// Returns a tenant's usage on one day, so far.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn usage(&self, tenant: &TenantName, day: Day) -> Result<DailyUsage, Error> {
        let sql = "SELECT cpu_ms, executions FROM usage WHERE tenant = ? AND day = ?";
        Ok(self.row(sql, (tenant.clone(), day), |row| from_row(row, 0)).await?.unwrap_or_default())
    }

    /// Returns a tenant's usage on each day from `first` to `last`, inclusive; days without usage are
    /// omitted.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn usage_between(
        &self,
        tenant: &TenantName,
        first: Day,
        last: Day,
    ) -> Result<Vec<(Day, DailyUsage)>, Error> {
        let sql = "SELECT day, cpu_ms, executions FROM usage \
                   WHERE tenant = ? AND day BETWEEN ? AND ? ORDER BY day LIMIT ?";
        let values = (tenant.clone(), first, last, MAX_DAYS);
        self.rows(sql, values, |row| Ok((row.get(0)?, from_row(row, 1)?))).await
    }

    /// Counts the objects that a tenant owns, or returns `None` for an unknown tenant.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn owned_objects(&self, tenant: &TenantName) -> Result<Option<OwnedObjects>, Error> {
        let tenant = tenant.clone();
        self.read(move |db| {
            let Some(executions_bytes) = tenants::find(db, &tenant)?.map(|tenant| tenant.stored_bytes) else {
                return Ok(None);
            };
            let count = |table: &str| {
                let sql = format!("SELECT count(*) FROM {table} WHERE tenant = ?");
                Ok::<_, Error>(db.query_row(&sql, [&tenant], |row| row.get::<_, i64>(0))?.unsigned_abs())
            };
            Ok(Some(OwnedObjects {
                executions: count("executions")?,
                executions_bytes,
                volumes: count("volumes")?,
                snapshots: count("snapshots")?,
                disk_bytes: volumes::sum_reserved_bytes(db, &tenant)?,
                keys: count("keys")?,
            }))
        })
        .await
    }

    /// Adds usage that does not come from an execution, such as the CPU time of a sandbox's commands.
    ///
    /// # Errors
    /// The tenant does not exist, or the database cannot be written.
    pub async fn add_usage(&self, tenant: &TenantName, day: Day, used: DailyUsage) -> Result<(), Error> {
        let tenant = tenant.clone();
        self.write_waiting(0, move |db| add(db, &tenant, day, used)).await
    }
}

pub(crate) fn add(db: &Connection, tenant: &TenantName, day: Day, used: DailyUsage) -> Result<(), Error> {
    let sql = "INSERT INTO usage (tenant, day, cpu_ms, executions) VALUES (?, ?, ?, ?) \
               ON CONFLICT DO UPDATE SET cpu_ms = cpu_ms + excluded.cpu_ms, \
               executions = executions + excluded.executions";
    let (cpu, executions) = (
        size_limits::to_sql_integer("cpu_ms", used.cpu_ms)?,
        size_limits::to_sql_integer("executions", used.executions)?,
    );
    let added = db.prepare_cached(sql)?.execute(params![tenant, day, cpu, executions]);
    added.map(drop).map_err(map_missing_tenant)
}

fn from_row(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<DailyUsage> {
    Ok(DailyUsage {
        cpu_ms: row.get::<_, i64>(first)?.unsigned_abs(),
        executions: row.get::<_, i64>(first + 1)?.unsigned_abs(),
    })
}
