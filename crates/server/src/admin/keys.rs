//! `/v1/tenants/{tenant}/keys`: API keys.

use std::time::Duration;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use belljar_store::{KeyId, NewKey, Scope, Scopes, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Desk, tenants};
use crate::body::{Whole, parse};
use crate::error::Error;
use crate::schema;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    #[serde(default)]
    label: String,
    scopes: Option<Vec<String>>,
    expires_in_seconds: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rotation {
    #[serde(default)]
    old_valid_seconds: u64,
}

/// Lists a tenant's keys, without their secrets.
#[utoipa::path(get, path = "/v1/tenants/{tenant}/keys", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name")),
    responses((status = 200, description = "The tenant's keys, newest first", body = schema::KeyList)))]
pub(crate) async fn list(desk: Desk, Path(tenant): Path<String>) -> Result<Json<Value>, Error> {
    let keys = desk.world.store.keys(&tenants::known(&tenant)?).await?;
    Ok(Json(json!({"keys": keys})))
}

/// Creates a key.
///
/// Its secret is shown only in this response.
#[utoipa::path(post, path = "/v1/tenants/{tenant}/keys", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name")),
    request_body = schema::NewKey,
    responses((status = 201, description = "The new key, with its secret", body = schema::ShownKey),
        (status = 404, description = "No such tenant", body = schema::Problem),
        (status = 422, description = "Invalid request", body = schema::Problem)))]
pub(crate) async fn create(
    desk: Desk,
    Path(name): Path<String>,
    body: Whole,
) -> Result<(StatusCode, Json<Value>), Error> {
    let (tenant, new): (_, New) = (tenants::known(&name)?, parse(body)?);
    let scopes = scopes(new.scopes)?;
    let now = Timestamp::now();
    let expires = new.expires_in_seconds.map(|seconds| now.after(Duration::from_secs(seconds)));
    let store = desk.store();
    let work = async move { Ok(store.add_key(&tenant, &new.label, scopes, expires, now).await?) };
    desk.act("key.create", &name, work).await.map(shown)
}

/// Creates a successor of a key.
///
/// The old key is revoked, at once or after a delay.
#[utoipa::path(post, path = "/v1/tenants/{tenant}/keys/{key}/rotate", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name"),
        ("key" = String, Path, description = "Key id")),
    request_body = schema::KeyRotation,
    responses((status = 201, description = "The new key, with its secret", body = schema::ShownKey),
        (status = 404, description = "No such key", body = schema::Problem)))]
pub(crate) async fn rotate(
    desk: Desk,
    Path((tenant, key)): Path<(String, String)>,
    body: Whole,
) -> Result<(StatusCode, Json<Value>), Error> {
    let (tenant, id, rotation): (_, _, Rotation) = (tenants::known(&tenant)?, known(&key)?, parse(body)?);
    let now = Timestamp::now();
    let until = now.after(Duration::from_secs(rotation.old_valid_seconds));
    let store = desk.store();
    let work = async move { Ok(store.rotate_key(&tenant, &id, until, now).await?) };
    desk.act("key.rotate", &key, work).await.map(shown)
}

/// Revokes a key, at once and permanently.
#[utoipa::path(delete, path = "/v1/tenants/{tenant}/keys/{key}", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name"),
        ("key" = String, Path, description = "Key id")),
    responses((status = 204, description = "The key is revoked"),
        (status = 404, description = "No such key", body = schema::Problem)))]
pub(crate) async fn revoke(
    desk: Desk,
    Path((tenant, key)): Path<(String, String)>,
) -> Result<StatusCode, Error> {
    let (tenant, id) = (tenants::known(&tenant)?, known(&key)?);
    let store = desk.store();
    let work = async move { Ok(store.revoke_key(&tenant, &id, Timestamp::now()).await?) };
    desk.act("key.revoke", &key, work).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Parses the scopes of a key. The default excludes `admin`, which must be requested explicitly.
fn scopes(given: Option<Vec<String>>) -> Result<Scopes, Error> {
    match given {
        None => Ok([Scope::Run, Scope::Sandboxes].into_iter().collect()),
        Some(words) => Ok(words.iter().map(|word| word.parse::<Scope>()).collect::<Result<_, _>>()?),
    }
}

fn known(key: &str) -> Result<KeyId, Error> {
    key.parse().map_err(|_| Error::NotFound("key"))
}

fn shown(new: NewKey) -> (StatusCode, Json<Value>) {
    (StatusCode::CREATED, Json(json!({"key": new.secret.reveal(), "record": new.record})))
}
