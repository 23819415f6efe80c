//! `/v1/tenants`: tenants.

use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use belljar_store::{Quotas, Tenant, TenantName, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::AdminRequest;
use crate::dialects::v1::schema;
use crate::error::Error;
use crate::http::body::{JsonBody, SortedJson, parse};

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

/// Changes to a tenant. Absent fields stay as they are.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TenantChange")]
struct TenantChangeBody {
    /// New quotas.
    quotas: Option<Quotas>,
    /// Whether the tenant is disabled.
    disabled: Option<bool>,
    /// Policy that always applies to the tenant's requests; `off` lets them choose freely.
    policy: Option<String>,
    /// Default provider of the tenant's requests: a name, `auto`, or null for the server's default.
    #[serde(default, deserialize_with = "some_if_present")]
    provider: Option<Option<String>>,
}

/// Deserializes a present field to `Some`, to distinguish `null` from an absent field.
fn some_if_present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
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
            store.set_quotas(&changed, quotas).await?;
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

/// Removes a tenant that owns nothing.
#[utoipa::path(delete, path = "/v1/tenants/{tenant}", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name")),
    responses((status = 204, description = "The tenant is removed"),
        (status = 404, description = "No such tenant"),
        (status = 409, description = "The tenant still owns sandboxes, volumes or other resources")))]
pub(crate) async fn remove(admin: AdminRequest, Path(name): Path<String>) -> Result<StatusCode, Error> {
    let (tenant, state) = (parse_tenant_name(&name)?, Arc::clone(&admin.state));
    let work = async move {
        // Callers without a key in the database belong to this tenant.
        if state.authenticator.is_default_tenant(&tenant) {
            return Err(Error::DefaultTenant);
        }
        Ok(state.store.remove_tenant(&tenant).await?)
    };
    admin.run_audited("tenant.remove", &name, work).await?;
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
