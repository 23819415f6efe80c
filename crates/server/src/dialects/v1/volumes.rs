//! `/v1/volumes`: named directories of a tenant that outlive sandboxes.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_store::{Timestamp, Volume, VolumeId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;
use crate::app_state::AppState;
use crate::error::Error;
use crate::http::body::{JsonBody, SortedJson, parse};
use crate::http::callers::SandboxCaller;
use crate::storage::volumes;

/// A volume to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewVolume")]
struct VolumeBody {
    /// Name of the volume.
    name: String,
    /// Maximum size in bytes; default 1 GB.
    #[serde(default = "default_volume_bytes")]
    #[schemars(range(min = 1))]
    size_bytes: u64,
}

fn default_volume_bytes() -> u64 {
    1 << 30
}

/// A named directory that outlives sandboxes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Volume")]
pub(crate) struct VolumeInfo {
    #[serde(flatten)]
    volume: Volume,
    /// Size in bytes when it was last measured; null if never measured.
    used_bytes: Option<u64>,
}

/// All volumes of a tenant.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct VolumeList {
    /// Volumes, sorted by name.
    volumes: Vec<VolumeInfo>,
}

/// Creates a volume.
#[utoipa::path(
    post, path = "/v1/volumes", tag = "volumes", request_body = ref(schema::request::<VolumeBody>()),
    responses(
        (status = 201, description = "The new, empty volume", body = ref(schema::response::<VolumeInfo>())),
        (status = 409, description = "A volume of this name exists"),
        (status = 422, description = "Invalid request"),
        (status = 429, description = "The tenant's disk quota is exceeded"),
    )
)]
pub(crate) async fn create(
    State(state): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    body: JsonBody,
) -> Result<Response, Error> {
    let new: VolumeBody = parse(body)?;
    if new.size_bytes == 0 {
        return Err(Error::Invalid { field: "size_bytes", message: "must be above zero".to_owned() });
    }
    let volume = Volume {
        tenant: caller.tenant.clone(),
        name: new.name.parse()?,
        id: VolumeId::generate()?,
        size_bytes: new.size_bytes,
        created: Timestamp::now(),
    };
    let volume = volumes::create(state, &caller, volume).await?;
    let location = [(header::LOCATION, format!("/v1/volumes/{}", volume.name))];
    Ok((StatusCode::CREATED, location, SortedJson(VolumeInfo { volume, used_bytes: Some(0) }))
        .into_response())
}

/// Lists the tenant's volumes, sorted by name.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes",
    responses((status = 200, description = "All volumes of the tenant", body = ref(schema::response::<VolumeList>()))))]
pub(crate) async fn list(
    State(state): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
) -> Result<SortedJson<VolumeList>, Error> {
    let volumes = state.store.volumes(&caller.tenant).await?.into_iter();
    let volumes =
        volumes.map(|volume| VolumeInfo { used_bytes: state.volume_mounts.used_bytes(&volume.id), volume });
    Ok(SortedJson(VolumeList { volumes: volumes.collect() }))
}

/// Returns a volume.
#[utoipa::path(get, path = "/v1/volumes/{name}", tag = "volumes",
    params(("name" = String, Path, description = "Volume name")),
    responses((status = 200, description = "The volume", body = ref(schema::response::<VolumeInfo>())),
        (status = 404, description = "No such volume in this tenant")))]
pub(crate) async fn show(
    State(state): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    Path(name): Path<String>,
) -> Result<SortedJson<VolumeInfo>, Error> {
    let volume = volumes::find(&state, &caller, &name).await?;
    let used_bytes = volumes::used_bytes(&state, &volume.id).await?;
    Ok(SortedJson(VolumeInfo { volume, used_bytes }))
}

/// Removes a volume and its files.
#[utoipa::path(delete, path = "/v1/volumes/{name}", tag = "volumes",
    params(("name" = String, Path, description = "Volume name")),
    responses((status = 204, description = "The volume is removed"),
        (status = 404, description = "No such volume in this tenant"),
        (status = 409, description = "The volume is mounted in a sandbox")))]
pub(crate) async fn remove(
    State(state): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    Path(name): Path<String>,
) -> Result<StatusCode, Error> {
    volumes::remove(state, caller, name).await?;
    Ok(StatusCode::NO_CONTENT)
}
