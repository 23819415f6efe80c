//! `/v1/tenants/{tenant}/keys`: API keys.

use std::time::Duration;

use axum::extract::Path;
use axum::http::StatusCode;
use belljar_store::{KeyId, KeyRecord, NewKey, Scope, Scopes, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AdminRequest, tenants};
use crate::dialects::v1::schema;
use crate::error::Error;
use crate::http::body::{JsonBody, SortedJson, parse};

/// A key to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewKey")]
struct NewKeyBody {
    /// Label for people.
    #[serde(default)]
    label: String,
    /// Scopes of the key; default `run` and `sandboxes`.
    #[schemars(with = "Option<Vec<Scope>>")]
    scopes: Option<Vec<String>>,
    /// Lifetime in seconds; unlimited by default.
    expires_in_seconds: Option<u64>,
}

/// Options for rotating a key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "KeyRotation")]
struct RotationBody {
    /// How long the old key stays valid, in seconds; default 0.
    #[serde(default)]
    old_valid_seconds: u64,
}

/// Keys of a tenant.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KeyList {
    /// Keys of the tenant.
    keys: Vec<KeyRecord>,
}

/// A new key. Its secret is shown only in this response.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ShownKey {
    /// The secret key.
    key: String,
    /// Metadata of the key.
    record: KeyRecord,
}

/// Lists a tenant's keys, without their secrets.
#[utoipa::path(get, path = "/v1/tenants/{tenant}/keys", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name")),
    responses((status = 200, description = "The tenant's keys, newest first", body = ref(schema::response::<KeyList>()))))]
pub(crate) async fn list(
    admin: AdminRequest,
    Path(tenant): Path<String>,
) -> Result<SortedJson<KeyList>, Error> {
    let keys = admin.state.store.keys(&tenants::parse_tenant_name(&tenant)?).await?;
    Ok(SortedJson(KeyList { keys }))
}

/// Creates a key.
///
/// Its secret is shown only in this response.
#[utoipa::path(post, path = "/v1/tenants/{tenant}/keys", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name")),
    request_body = ref(schema::request::<NewKeyBody>()),
    responses((status = 201, description = "The new key, with its secret", body = ref(schema::response::<ShownKey>())),
        (status = 404, description = "No such tenant"),
        (status = 422, description = "Invalid request")))]
pub(crate) async fn create(
    admin: AdminRequest,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<(StatusCode, SortedJson<ShownKey>), Error> {
    let (tenant, new): (_, NewKeyBody) = (tenants::parse_tenant_name(&name)?, parse(body)?);
    let scopes = scopes(new.scopes)?;
    let now = Timestamp::now();
    let expires = new.expires_in_seconds.map(|seconds| now.plus(Duration::from_secs(seconds)));
    let store = admin.store();
    let work = async move { Ok(store.add_key(&tenant, &new.label, scopes, expires, now).await?) };
    admin.run_audited("key.create", &name, work).await.map(new_key_response)
}

/// Creates a successor of a key.
///
/// The old key is revoked, at once or after a delay.
#[utoipa::path(post, path = "/v1/tenants/{tenant}/keys/{key}/rotate", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name"),
        ("key" = String, Path, description = "Key id")),
    request_body = ref(schema::request::<RotationBody>()),
    responses((status = 201, description = "The new key, with its secret", body = ref(schema::response::<ShownKey>())),
        (status = 404, description = "No such key")))]
pub(crate) async fn rotate(
    admin: AdminRequest,
    Path((tenant, key)): Path<(String, String)>,
    body: JsonBody,
) -> Result<(StatusCode, SortedJson<ShownKey>), Error> {
    let (tenant, id, rotation): (_, _, RotationBody) =
        (tenants::parse_tenant_name(&tenant)?, parse_key_id(&key)?, parse(body)?);
    let now = Timestamp::now();
    let until = now.plus(Duration::from_secs(rotation.old_valid_seconds));
    let store = admin.store();
    let work = async move { Ok(store.rotate_key(&tenant, &id, until, now).await?) };
    admin.run_audited("key.rotate", &key, work).await.map(new_key_response)
}

/// Revokes a key, at once and permanently.
#[utoipa::path(delete, path = "/v1/tenants/{tenant}/keys/{key}", tag = "administration",
    params(("tenant" = String, Path, description = "Tenant name"),
        ("key" = String, Path, description = "Key id")),
    responses((status = 204, description = "The key is revoked"),
        (status = 404, description = "No such key")))]
pub(crate) async fn revoke(
    admin: AdminRequest,
    Path((tenant, key)): Path<(String, String)>,
) -> Result<StatusCode, Error> {
    let (tenant, id) = (tenants::parse_tenant_name(&tenant)?, parse_key_id(&key)?);
    let store = admin.store();
    let work = async move { Ok(store.revoke_key(&tenant, &id, Timestamp::now()).await?) };
    admin.run_audited("key.revoke", &key, work).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Parses the scopes of a key. The default excludes `admin`, which must be requested explicitly.
fn scopes(given: Option<Vec<String>>) -> Result<Scopes, Error> {
    match given {
        None => Ok([Scope::Run, Scope::Sandboxes].into_iter().collect()),
        Some(words) => Ok(words.iter().map(|word| word.parse::<Scope>()).collect::<Result<_, _>>()?),
    }
}

fn parse_key_id(key: &str) -> Result<KeyId, Error> {
    key.parse().map_err(|_| Error::NotFound("key"))
}

fn new_key_response(new: NewKey) -> (StatusCode, SortedJson<ShownKey>) {
    let shown = ShownKey { key: new.secret.reveal().to_owned(), record: new.record };
    (StatusCode::CREATED, SortedJson(shown))
}
