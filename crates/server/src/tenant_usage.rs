//! What a tenant uses now, owns, and has used per day.

use belljar_store::{DailyUsage, Day, OwnedObjects, Quotas, TenantName, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

use crate::app_state::AppState;
use crate::error::Error;

/// Maximum number of days in one answer.
const MAX_DAYS: u32 = 366;

/// Current use, property and daily use of a tenant.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TenantUsage {
    /// Name of the tenant.
    tenant: TenantName,
    /// Executions that are running.
    running_executions: u64,
    /// Executions that are queued.
    queued_executions: u64,
    /// Live sandboxes.
    sandboxes: u64,
    /// Memory limits of all running executions and sandboxes together, in bytes.
    memory_bytes: u64,
    /// CPU time of today (UTC) so far, in milliseconds. Running work counts when it ends, sandboxes every few
    /// minutes.
    cpu_ms_today: u64,
    /// Number of volumes.
    volumes: u64,
    /// Number of snapshots.
    snapshots: u64,
    /// Size of all volumes and snapshots together, in bytes.
    disk_bytes: u64,
    /// Number of stored executions.
    stored_executions: u64,
    /// Size of their results in bytes.
    stored_bytes: u64,
    /// Number of keys, including those that are no longer valid.
    keys: u64,
    /// Quotas that apply: the tenant's own, else the server's default; null for none.
    quotas: Quotas,
    /// Days with usage, oldest first.
    days: Vec<UsageDay>,
}

/// Resources that a tenant used on one day.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct UsageDay {
    /// Date (UTC), such as `2026-11-19`.
    day: String,
    /// Executions that ended.
    executions: u64,
    /// CPU time in milliseconds.
    cpu_ms: u64,
}

impl From<(Day, DailyUsage)> for UsageDay {
    fn from((day, usage): (Day, DailyUsage)) -> Self {
        Self { day: day.to_string(), executions: usage.executions, cpu_ms: usage.cpu_ms }
    }
}

/// Returns the usage of a tenant: now, and on the last `days` days.
pub(crate) async fn tenant_usage(
    state: &AppState,
    name: &TenantName,
    days: u32,
) -> Result<TenantUsage, Error> {
    if !(1..=MAX_DAYS).contains(&days) {
        return Err(Error::Invalid { field: "days", message: format!("must be from 1 to {MAX_DAYS}") });
    }
    let missing = || Error::NotFound("tenant");
    let quotas = state.store.tenant(name).await?.ok_or_else(missing)?.quotas;
    let OwnedObjects { executions, executions_bytes, volumes, snapshots, disk_bytes, keys } =
        state.store.owned_objects(name).await?.ok_or_else(missing)?;
    let today = Timestamp::now().day();
    let used = state.store.usage_between(name, today.minus_days(days - 1), today).await?;
    let cpu_ms_today = used.last().filter(|(day, _)| *day == today).map_or(0, |(_, used)| used.cpu_ms);
    let queue = state.run_queue.tenant_load(name);
    Ok(TenantUsage {
        tenant: name.clone(),
        running_executions: queue.running,
        queued_executions: queue.queued,
        sandboxes: state.sandboxes.held_slots(name),
        memory_bytes: queue.memory_bytes,
        cpu_ms_today,
        volumes,
        snapshots,
        disk_bytes: disk_bytes.saturating_add(state.open_disks.held_bytes(name)),
        stored_executions: executions,
        stored_bytes: executions_bytes,
        keys,
        quotas: Quotas { disk_bytes: quotas.disk_bytes.or(Some(state.settings.tenant_disk)), ..quotas },
        days: used.into_iter().map(UsageDay::from).collect(),
    })
}
