//! `/v1/tenants`: tenants.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, RawQuery};
use axum::http::StatusCode;
use belljar_store::{Quotas, Tenant, TenantName, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::AdminRequest;
use crate::dialects::v1::schema;
use crate::error::Error;
use crate::http::body::{JsonBody, SortedJson, parse};
use crate::http::query::Query;
use crate::tenant_deletion;
use crate::tenant_usage::{TenantUsage, tenant_usage};
use crate::uncancellable::run_uncancellable;

const DEFAULT_USAGE_DAYS: u32 = 7;

/// A tenant to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewTenant")]
struct NewTenantBody {
    /// Name of the tenant.
    #[schemars(regex(pattern = "^[a-z0-9][a-z0-9._-]*$"), length(max = 63))]
    name: String,
    /// Quotas; absent ones are the server's defaults.
    #[serde(default)]
    quotas: Quotas,
}

/// Changes to quotas. Absent ones stay as they are; null removes a quota, so that the server's default applies.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct QuotaChanges {
    /// Concurrent executions.
    #[serde(deserialize_with = "some_if_present")]
    concurrency: Option<Option<u32>>,
    /// Live sandboxes.
    #[serde(deserialize_with = "some_if_present")]
    sandboxes: Option<Option<u32>>,
    /// CPU seconds per day (UTC).
    #[serde(deserialize_with = "some_if_present")]
    cpu_seconds_per_day: Option<Option<u64>>,
    /// Memory limits of all running executions and sandboxes together, in bytes.
    #[serde(deserialize_with = "some_if_present")]
    memory_bytes: Option<Option<u64>>,
    /// Size of all volumes and snapshots together, in bytes.
    #[serde(deserialize_with = "some_if_present")]
    disk_bytes: Option<Option<u64>>,
}

impl QuotaChanges {
    fn apply(self, quotas: &mut Quotas) {
        let before = *quotas;
        *quotas = Quotas {
            concurrency: self.concurrency.unwrap_or(before.concurrency),
            sandboxes: self.sandboxes.unwrap_or(before.sandboxes),
            cpu_seconds_per_day: self.cpu_seconds_per_day.unwrap_or(before.cpu_seconds_per_day),
            memory_bytes: self.memory_bytes.unwrap_or(before.memory_bytes),
            disk_bytes: self.disk_bytes.unwrap_or(before.disk_bytes),
        };
    }
}

/// Changes to a tenant. Absent fields stay as they are.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TenantChange")]
struct TenantChangeBody {
    /// Quotas to change.
    quotas: Option<QuotaChanges>,
    /// Whether the tenant is disabled.
    disabled: Option<bool>,
    /// Policy floor: requests can select a stricter policy, never a more lenient one. `off` removes the floor.
    policy: Option<String>,
    /// Default provider of the tenant's requests: a name, `auto`, or null for the server's default.
    #[serde(default, deserialize_with = "some_if_present")]
    provider: Option<Option<String>>,
}

/// Deserializes a present field to `Some`, to distinguish `null` from an absent field.
fn some_if_present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// All tenants, by name.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TenantList {
    /// Tenants, sorted by name.
    tenants: Vec<Tenant>,
}

/// Lists all tenants.
#[utoipa::path(get, path = "/v1/tenants", tag = "administration",
    responses((status = 200, description = "The tenants, sorted by name", body = ref(schema::response::<TenantList>()))))]
pub(crate) async fn list(admin: AdminRequest) -> Result<SortedJson<TenantList>, Error> {
    Ok(SortedJson(TenantList { tenants: admin.state.store.tenants().await? }))
}

/// Creates a tenant.
#[utoipa::path(post, path = "/v1/tenants", tag = "administration", request_body = ref(schema::request::<NewTenantBody>()),
    responses((status = 201, description = "The new tenant", body = ref(schema::response::<Tenant>())),
        (status = 409, description = "A tenant of this name exists"),
        (status = 422, description = "Invalid request")))]
pub(crate) async fn create(admin: AdminRequest, body: JsonBody) -> Result<(StatusCode, Json<Tenant>), Error> {
    let new: NewTenantBody = parse(body)?;
    let name: TenantName = new.name.parse()?;
    let (store, added) = (admin.store(), name.clone());
    let work = async move { Ok(store.add_tenant(&added, new.quotas, Timestamp::now()).await?) };
    admin.run_audited("tenant.create", &new.name, work).await?;
    Ok((StatusCode::CREATED, Json(find(&admin, &name).await?)))
}

/// Returns a tenant.
#[utoipa::path(get, path = "/v1/tenants/{tenant}", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name")),
    responses((status = 200, description = "The tenant", body = ref(schema::response::<Tenant>())),
        (status = 404, description = "No such tenant")))]
pub(crate) async fn show(admin: AdminRequest, Path(name): Path<String>) -> Result<Json<Tenant>, Error> {
    Ok(Json(find(&admin, &parse_tenant_name(&name)?).await?))
}

/// Changes the quotas, policy, default provider or disabled state of a tenant.
#[utoipa::path(patch, path = "/v1/tenants/{tenant}", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name")),
    request_body = ref(schema::request::<TenantChangeBody>()),
    responses((status = 200, description = "The changed tenant", body = ref(schema::response::<Tenant>())),
        (status = 404, description = "No such tenant")))]
pub(crate) async fn change(
    admin: AdminRequest,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<Tenant>, Error> {
    let (tenant, change): (_, TenantChangeBody) = (parse_tenant_name(&name)?, parse(body)?);
    if let Some(policy) = &change.policy {
        check_policy(&admin, policy)?;
    }
    if let Some(Some(provider)) = &change.provider {
        admin.state.engine.providers().check(provider)?;
    }
    let (store, changed) = (admin.store(), tenant.clone());
    let work = async move {
        if let Some(quotas) = change.quotas {
            store.change_quotas(&changed, move |all| quotas.apply(all)).await?;
        }
        if let Some(disabled) = change.disabled {
            store.disable_tenant(&changed, disabled.then(Timestamp::now)).await?;
        }
        if let Some(policy) = change.policy {
            store.set_tenant_policy(&changed, &policy).await?;
        }
        if let Some(provider) = change.provider {
            store.set_tenant_provider(&changed, provider).await?;
        }
        Ok(())
    };
    admin.run_audited("tenant.change", &name, work).await?;
    Ok(Json(find(&admin, &tenant).await?))
}

/// Returns what a tenant uses now, owns, and has used per day.
#[utoipa::path(get, path = "/v1/tenants/{tenant}/usage", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name"),
        ("days" = Option<u32>, Query, description = "Number of days up to today, 1 to 366; default 7")),
    responses((status = 200, description = "The tenant's usage", body = ref(schema::response::<TenantUsage>())),
        (status = 404, description = "No such tenant")))]
pub(crate) async fn usage(
    admin: AdminRequest,
    Path(name): Path<String>,
    query: RawQuery,
) -> Result<SortedJson<TenantUsage>, Error> {
    let days = Query::parse(query, &["days"])?.parsed("days")?.unwrap_or(DEFAULT_USAGE_DAYS);
    Ok(SortedJson(tenant_usage(&admin.state, &parse_tenant_name(&name)?, days).await?))
}

/// Deletes a tenant with everything it owns: cancels its executions, ends its sandboxes, and deletes results,
/// volumes, snapshots, keys and cached packages. Its keys are refused from the beginning. If the server stops
/// meanwhile, it continues at the next start. The audit log keeps its entries.
#[utoipa::path(delete, path = "/v1/tenants/{tenant}", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name")),
    responses((status = 204, description = "The tenant is deleted"),
        (status = 404, description = "No such tenant"),
        (status = 409, description = "The server's own tenant cannot be deleted")))]
pub(crate) async fn remove(admin: AdminRequest, Path(name): Path<String>) -> Result<StatusCode, Error> {
    let (tenant, state) = (parse_tenant_name(&name)?, Arc::clone(&admin.state));
    let (begun, beginning) = (tenant.clone(), Arc::clone(&state));
    let begin = async move { tenant_deletion::begin(&beginning, &begun).await };
    admin.run_audited("tenant.remove", &name, begin).await?;
    run_uncancellable(async move { tenant_deletion::complete(&state, &tenant).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Checks that a policy exists, because an unknown one would make every request fail.
pub(super) fn check_policy(admin: &AdminRequest, name: &str) -> Result<(), Error> {
    let found = admin.state.engine.policies().get(name);
    found.map(drop).map_err(|error| Error::Invalid { field: "policy", message: error.to_string() })
}

pub(super) fn parse_tenant_name(name: &str) -> Result<TenantName, Error> {
    name.parse().map_err(|_| Error::NotFound("tenant"))
}

async fn find(admin: &AdminRequest, name: &TenantName) -> Result<Tenant, Error> {
    admin.state.store.tenant(name).await?.ok_or(Error::NotFound("tenant"))
}
