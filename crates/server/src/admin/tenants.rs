//! `/v1/tenants`.

use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use belljar_store::{Quotas, Tenant, TenantName, Timestamp};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::Desk;
use crate::body::{Whole, parse};
use crate::error::Error;
use crate::schema;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    name: String,
    #[serde(default)]
    quotas: Quotas,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    quotas: Option<Quotas>,
    disabled: Option<bool>,
    policy: Option<String>,
    /// A name, or nothing for the usual one; left out, it stays.
    #[serde(default, deserialize_with = "given")]
    provider: Option<Option<String>>,
}

/// Tells `null` from what was left out.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// All tenants.
#[utoipa::path(get, path = "/v1/tenants", tag = "administration",
    responses((status = 200, description = "By name", body = schema::TenantList)))]
pub(crate) async fn list(desk: Desk) -> Result<Json<Value>, Error> {
    Ok(Json(json!({"tenants": desk.world.store.tenants().await?})))
}

/// Adds a tenant.
#[utoipa::path(post, path = "/v1/tenants", tag = "administration", request_body = schema::NewTenant,
    responses((status = 201, description = "It is there", body = schema::Tenant),
        (status = 409, description = "There is one of this name", body = schema::Problem),
        (status = 422, description = "Something is wrong with it", body = schema::Problem)))]
pub(crate) async fn create(desk: Desk, body: Whole) -> Result<(StatusCode, Json<Tenant>), Error> {
    let new: New = parse(body)?;
    let name: TenantName = new.name.parse()?;
    let (store, added) = (desk.store(), name.clone());
    let work = async move { Ok(store.add_tenant(&added, new.quotas, Timestamp::now()).await?) };
    desk.act("tenant.create", &new.name, work).await?;
    Ok((StatusCode::CREATED, Json(find(&desk, &name).await?)))
}

/// One tenant.
#[utoipa::path(get, path = "/v1/tenants/{tenant}", tag = "administration", params(("tenant" = String, Path)),
    responses((status = 200, description = "It", body = schema::Tenant),
        (status = 404, description = "There is none", body = schema::Problem)))]
pub(crate) async fn show(desk: Desk, Path(name): Path<String>) -> Result<Json<Tenant>, Error> {
    Ok(Json(find(&desk, &known(&name)?).await?))
}

/// Changes what a tenant may have, whether its keys open anything, the policy above which it cannot go, and who serves it.
#[utoipa::path(patch, path = "/v1/tenants/{tenant}", tag = "administration", params(("tenant" = String, Path)),
    request_body = schema::TenantChange,
    responses((status = 200, description = "As it is now", body = schema::Tenant),
        (status = 404, description = "There is none", body = schema::Problem)))]
pub(crate) async fn change(desk: Desk, Path(name): Path<String>, body: Whole) -> Result<Json<Tenant>, Error> {
    let (tenant, change): (_, Change) = (known(&name)?, parse(body)?);
    if let Some(policy) = &change.policy {
        check_policy(&desk, policy)?;
    }
    if let Some(Some(provider)) = &change.provider {
        desk.world.engine.fleet().check(provider)?;
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
    desk.act("tenant.change", &name, work).await?;
    Ok(Json(find(&desk, &tenant).await?))
}

/// Removes a tenant that has nothing any more.
#[utoipa::path(delete, path = "/v1/tenants/{tenant}", tag = "administration", params(("tenant" = String, Path)),
    responses((status = 204, description = "It is gone"),
        (status = 404, description = "There is none", body = schema::Problem),
        (status = 409, description = "Something still belongs to it", body = schema::Problem)))]
pub(crate) async fn remove(desk: Desk, Path(name): Path<String>) -> Result<StatusCode, Error> {
    let (tenant, world) = (known(&name)?, Arc::clone(&desk.world));
    let work = async move {
        // Without it, nobody could come in any more.
        if world.accounts.is_home(&tenant) {
            return Err(Error::OwnTenant);
        }
        Ok(world.store.remove_tenant(&tenant).await?)
    };
    desk.act("tenant.remove", &name, work).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A policy that nobody knows would stop every request.
pub(super) fn check_policy(desk: &Desk, name: &str) -> Result<(), Error> {
    let found = desk.world.engine.policies().named(name);
    found.map(drop).map_err(|error| Error::Invalid { field: "policy", message: error.to_string() })
}

pub(super) fn known(name: &str) -> Result<TenantName, Error> {
    name.parse().map_err(|_| Error::NotFound("tenant"))
}

async fn find(desk: &Desk, name: &TenantName) -> Result<Tenant, Error> {
    desk.world.store.tenant(name).await?.ok_or(Error::NotFound("tenant"))
}
