//! `/v1/volumes`: named directories of a tenant that outlive sandboxes.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::host_storage::VolumeUsage;
use belljar_store::{ObjectKind, Timestamp, Volume, VolumeId, VolumeName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app_state::AppState;
use crate::authentication::{Caller, SandboxCaller};
use crate::body::{JsonBody, SortedJson, parse};
use crate::error::Error;
use crate::schema;
use crate::uncancellable::run_uncancellable;

/// A volume to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewVolume")]
struct VolumeBody {
    /// Name of the volume.
    name: String,
    /// Maximum size in bytes.
    #[schemars(range(min = 1))]
    size_bytes: u64,
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
    State(world): State<Arc<AppState>>,
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
    let quota = world.disk_quota(&caller);
    let volume = run_uncancellable(async move { create_volume(&world, volume, quota).await }).await?;
    let place = [(header::LOCATION, format!("/v1/volumes/{}", volume.name))];
    Ok((StatusCode::CREATED, place, SortedJson(VolumeInfo { volume, used_bytes: Some(0) })).into_response())
}

/// Creates the directory before the record, so that every recorded volume has a directory.
async fn create_volume(world: &AppState, volume: Volume, quota: u64) -> Result<Volume, Error> {
    world.places.make_volume(volume.id.as_str()).await?;
    if let Err(error) = world.store.add_volume(volume.clone(), quota).await {
        world.places.remove_volume(volume.id.as_str()).await?;
        return Err(error.into());
    }
    Ok(volume)
}

/// Lists the tenant's volumes, sorted by name.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes",
    responses((status = 200, description = "All volumes of the tenant", body = ref(schema::response::<VolumeList>()))))]
pub(crate) async fn list(
    State(world): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
) -> Result<SortedJson<VolumeList>, Error> {
    let volumes = world.store.volumes(&caller.tenant).await?.into_iter();
    let volumes =
        volumes.map(|volume| VolumeInfo { used_bytes: world.mounts.used_bytes(&volume.id), volume });
    Ok(SortedJson(VolumeList { volumes: volumes.collect() }))
}

/// Returns a volume.
#[utoipa::path(get, path = "/v1/volumes/{name}", tag = "volumes",
    params(("name" = String, Path, description = "Volume name")),
    responses((status = 200, description = "The volume", body = ref(schema::response::<VolumeInfo>())),
        (status = 404, description = "No such volume in this tenant")))]
pub(crate) async fn show(
    State(world): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    Path(name): Path<String>,
) -> Result<SortedJson<VolumeInfo>, Error> {
    let volume = find(&world, &caller, &name).await?;
    let used = match world.mounts.used_bytes(&volume.id) {
        Some(used) => Some(used),
        // Measured by the monitor of the sandbox that mounts it.
        None if world.mounts.is_written(&volume.id) => None,
        None => measure(&world, &volume.id).await?,
    };
    Ok(SortedJson(VolumeInfo { volume, used_bytes: used }))
}

/// Removes a volume and its files.
#[utoipa::path(delete, path = "/v1/volumes/{name}", tag = "volumes",
    params(("name" = String, Path, description = "Volume name")),
    responses((status = 204, description = "The volume is removed"),
        (status = 404, description = "No such volume in this tenant"),
        (status = 409, description = "The volume is mounted in a sandbox")))]
pub(crate) async fn remove(
    State(world): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    Path(name): Path<String>,
) -> Result<StatusCode, Error> {
    run_uncancellable(async move { remove_volume(&world, &caller, &name).await }).await
}

async fn remove_volume(world: &AppState, caller: &Caller, name: &str) -> Result<StatusCode, Error> {
    let step = world.mounts.lookup_lock.lock().await;
    let volume = find(world, caller, name).await?;
    if world.mounts.is_mounted(&volume.id) {
        return Err(belljar_store::Error::InUse(ObjectKind::Volume).into());
    }
    world.store.remove_volume(&caller.tenant, &volume.name).await?;
    world.mounts.forget(&volume.id);
    drop(step);
    if let Err(error) = world.places.remove_volume(volume.id.as_str()).await {
        tracing::error!(volume = %volume.id, %error, "cannot remove a volume's files now");
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Returns a volume of the caller's tenant. A malformed name is reported as an unknown one.
async fn find(world: &AppState, caller: &Caller, name: &str) -> Result<Volume, Error> {
    let name: VolumeName = name.parse().map_err(|_| Error::NotFound("volume"))?;
    world.store.volume(&caller.tenant, &name).await?.ok_or(Error::NotFound("volume"))
}

/// Measures a volume. Only called if no sandbox can write to it, so the result stays valid.
async fn measure(world: &AppState, id: &VolumeId) -> Result<Option<u64>, Error> {
    let used = match world.places.measure_volume(id.as_str(), u64::MAX).await?.usage {
        VolumeUsage::Bytes(bytes) => Some(bytes),
        _ => None,
    };
    if !world.mounts.is_written(id) {
        world.mounts.set_used_bytes(id, used);
    }
    Ok(used)
}
