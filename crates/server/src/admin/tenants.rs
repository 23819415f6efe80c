//! `/v1/tenants`: tenants.

use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use belljar_store::{Quotas, Tenant, TenantName, Timestamp};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::AdminRequest;
use crate::body::{JsonBody, parse};
use crate::error::Error;
use crate::schema;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewTenantBody {
    name: String,
    #[serde(default)]
    quotas: Quotas,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantChangeBody {
    quotas: Option<Quotas>,
    disabled: Option<bool>,
    policy: Option<String>,
    /// A name, or `null` for the default provider; if absent, the provider is unchanged.
    #[serde(default, deserialize_with = "some_if_present")]
    provider: Option<Option<String>>,
}

/// Deserializes a present field to `Some`, to distinguish `null` from an absent field.
fn some_if_present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Lists all tenants.
#[utoipa::path(get, path = "/v1/tenants", tag = "administration",
    responses((status = 200, description = "The tenants, sorted by name", body = schema::TenantList)))]
pub(crate) async fn list(desk: AdminRequest) -> Result<Json<Value>, Error> {
    Ok(Json(json!({"tenants": desk.world.store.tenants().await?})))
}

/// Creates a tenant.
#[utoipa::path(post, path = "/v1/tenants", tag = "administration", request_body = schema::NewTenant,
    responses((status = 201, description = "The new tenant", body = schema::Tenant),
        (status = 409, description = "A tenant of this name exists", body = schema::Problem),
        (status = 422, description = "Invalid request", body = schema::Problem)))]
pub(crate) async fn create(desk: AdminRequest, body: JsonBody) -> Result<(StatusCode, Json<Tenant>), Error> {
    let new: NewTenantBody = parse(body)?;
    let name: TenantName = new.name.parse()?;
    let (store, added) = (desk.store(), name.clone());
    let work = async move { Ok(store.add_tenant(&added, new.quotas, Timestamp::now()).await?) };
    desk.run_audited("tenant.create", &new.name, work).await?;
    Ok((StatusCode::CREATED, Json(find(&desk, &name).await?)))
}

/// Returns a tenant.
#[utoipa::path(get, path = "/v1/tenants/{tenant}", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name")),
    responses((status = 200, description = "The tenant", body = schema::Tenant),
        (status = 404, description = "No such tenant", body = schema::Problem)))]
pub(crate) async fn show(desk: AdminRequest, Path(name): Path<String>) -> Result<Json<Tenant>, Error> {
    Ok(Json(find(&desk, &parse_tenant_name(&name)?).await?))
}

/// Changes the quotas, policy, default provider or disabled state of a tenant.
#[utoipa::path(patch, path = "/v1/tenants/{tenant}", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name")),
    request_body = schema::TenantChange,
    responses((status = 200, description = "The changed tenant", body = schema::Tenant),
        (status = 404, description = "No such tenant", body = schema::Problem)))]
pub(crate) async fn change(
    desk: AdminRequest,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<Tenant>, Error> {
    let (tenant, change): (_, TenantChangeBody) = (parse_tenant_name(&name)?, parse(body)?);
    if let Some(policy) = &change.policy {
        check_policy(&desk, policy)?;
    }
    if let Some(Some(provider)) = &change.provider {
        desk.world.engine.providers().check(provider)?;
    }
    let (store, changed) = (desk.store(), tenant.clone());
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
    desk.run_audited("tenant.change", &name, work).await?;
    Ok(Json(find(&desk, &tenant).await?))
}

/// Removes a tenant that owns nothing.
#[utoipa::path(delete, path = "/v1/tenants/{tenant}", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name")),
    responses((status = 204, description = "The tenant is removed"),
        (status = 404, description = "No such tenant", body = schema::Problem),
        (status = 409, description = "The tenant still owns sandboxes, volumes or other resources",
            body = schema::Problem)))]
pub(crate) async fn remove(desk: AdminRequest, Path(name): Path<String>) -> Result<StatusCode, Error> {
    let (tenant, world) = (parse_tenant_name(&name)?, Arc::clone(&desk.world));
    let work = async move {
        // Callers without a key in the database belong to this tenant.
        if world.accounts.is_default_tenant(&tenant) {
            return Err(Error::DefaultTenant);
        }
        Ok(world.store.remove_tenant(&tenant).await?)
    };
    desk.run_audited("tenant.remove", &name, work).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Checks that a policy exists, because an unknown one would make every request fail.
pub(super) fn check_policy(desk: &AdminRequest, name: &str) -> Result<(), Error> {
    let found = desk.world.engine.policies().get(name);
    found.map(drop).map_err(|error| Error::Invalid { field: "policy", message: error.to_string() })
}

pub(super) fn parse_tenant_name(name: &str) -> Result<TenantName, Error> {
    name.parse().map_err(|_| Error::NotFound("tenant"))
}

async fn find(desk: &AdminRequest, name: &TenantName) -> Result<Tenant, Error> {
    desk.world.store.tenant(name).await?.ok_or(Error::NotFound("tenant"))
}
