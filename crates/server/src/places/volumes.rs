//! `/v1/volumes`: named directories of a tenant that outlive sandboxes.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::host_storage::VolumeUsage;
use belljar_store::{ObjectKind, Timestamp, Volume, VolumeId, VolumeName};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app_state::AppState;
use crate::authentication::{Caller, SandboxCaller};
use crate::body::{JsonBody, parse};
use crate::error::Error;
use crate::schema;
use crate::uncancellable::run_uncancellable;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeBody {
    name: String,
    size_bytes: u64,
}

/// Creates a volume.
#[utoipa::path(
    post, path = "/v1/volumes", tag = "volumes", request_body = schema::NewVolume,
    responses(
        (status = 201, description = "The new, empty volume", body = schema::Volume),
        (status = 409, description = "A volume of this name exists", body = schema::Problem),
        (status = 422, description = "Invalid request", body = schema::Problem),
        (status = 429, description = "The tenant's disk quota is exceeded", body = schema::Problem),
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
    Ok((StatusCode::CREATED, place, Json(volume_json(&volume, Some(0)))).into_response())
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
    responses((status = 200, description = "All volumes of the tenant", body = schema::VolumeList)))]
pub(crate) async fn list(
    State(world): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
) -> Result<Json<Value>, Error> {
    let volumes = world.store.volumes(&caller.tenant).await?;
    let shown = volumes.iter().map(|volume| volume_json(volume, world.mounts.used_bytes(&volume.id)));
    Ok(Json(json!({"volumes": shown.collect::<Vec<_>>()})))
}

/// Returns a volume.
#[utoipa::path(get, path = "/v1/volumes/{name}", tag = "volumes",
    params(("name" = String, Path, description = "Volume name")),
    responses((status = 200, description = "The volume", body = schema::Volume),
        (status = 404, description = "No such volume in this tenant", body = schema::Problem)))]
pub(crate) async fn show(
    State(world): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    Path(name): Path<String>,
) -> Result<Json<Value>, Error> {
    let volume = find(&world, &caller, &name).await?;
    let used = match world.mounts.used_bytes(&volume.id) {
        Some(used) => Some(used),
        // Measured by the monitor of the sandbox that mounts it.
        None if world.mounts.is_written(&volume.id) => None,
        None => measure(&world, &volume.id).await?,
    };
    Ok(Json(volume_json(&volume, used)))
}

/// Removes a volume and its files.
#[utoipa::path(delete, path = "/v1/volumes/{name}", tag = "volumes",
    params(("name" = String, Path, description = "Volume name")),
    responses((status = 204, description = "The volume is removed"),
        (status = 404, description = "No such volume in this tenant", body = schema::Problem),
        (status = 409, description = "The volume is mounted in a sandbox", body = schema::Problem)))]
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

fn volume_json(volume: &Volume, used_bytes: Option<u64>) -> Value {
    json!({
        "name": volume.name,
        "size_bytes": volume.size_bytes,
        "used_bytes": used_bytes,
        "created": volume.created,
    })
}
