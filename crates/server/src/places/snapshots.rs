//! `/v1/snapshots`: copies of a sandbox's files.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::host_storage::HostStorageError;
use belljar_engine::plan::WORKSPACE;
use belljar_engine::sandbox_handle::{ArchiveFormat, ArchiveLimits, SandboxHandle};
use belljar_store::{Snapshot, SnapshotId, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::app_state::AppState;
use crate::authentication::{Caller, SandboxCaller};
use crate::body::{JsonBody, SortedJson, parse};
use crate::error::Error;
use crate::sandboxes::{SandboxInUse, find as find_sandbox};
use crate::schema;
use crate::uncancellable::run_uncancellable;

/// Timeout for creating a snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum size of an archive in addition to the sandbox's disk limit, in bytes.
const ARCHIVE_OVERHEAD_BYTES: u64 = 1 << 20;
/// Maximum number of entries: what the guest packs, plus some margin.
const MAX_ENTRIES: u64 = 250_000;

/// A snapshot to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewSnapshot")]
struct SnapshotBody {
    /// Label for people.
    #[serde(default)]
    label: String,
}

/// All snapshots of a tenant.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SnapshotList {
    /// Snapshots, newest first.
    snapshots: Vec<Snapshot>,
}

/// Creates a snapshot of a sandbox's workspace, without its volumes.
///
/// Programs in the sandbox are stopped meanwhile.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/snapshots", tag = "snapshots",
    params(("id" = String, Path, description = "Sandbox id")),
    request_body = ref(schema::request::<SnapshotBody>()),
    responses(
        (status = 201, description = "The new snapshot", body = ref(schema::response::<Snapshot>())),
        (status = 404, description = "No such sandbox in this tenant"),
        (status = 409, description = "A snapshot is already being created, or the sandbox is paused"),
        (status = 429, description = "The tenant's disk quota is exceeded"),
    )
)]
pub(crate) async fn make(
    State(world): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Response, Error> {
    let new: SnapshotBody = parse(body)?;
    let used = find_sandbox(&world, &caller, &id).await?;
    let snapshot = Snapshot {
        tenant: caller.tenant.clone(),
        id: SnapshotId::generate()?,
        sandbox: used.id.clone(),
        label: new.label,
        size_bytes: used.admitted.plan.limits.disk_bytes.saturating_add(ARCHIVE_OVERHEAD_BYTES),
        created: Timestamp::now(),
        ready: None,
    };
    let quota = world.disk_quota(&caller);
    let snapshot =
        run_uncancellable(async move { create_snapshot(&world, &used, snapshot, quota).await }).await?;
    let place = [(header::LOCATION, format!("/v1/snapshots/{}", snapshot.id))];
    Ok((StatusCode::CREATED, place, SortedJson(snapshot)).into_response())
}

async fn create_snapshot(
    world: &AppState,
    used: &SandboxInUse,
    mut snapshot: Snapshot,
    quota: u64,
) -> Result<Snapshot, Error> {
    let Ok(_one) = used.snapshot_lock.try_lock() else { return Err(Error::SnapshotInProgress) };
    let most = world.store.add_snapshot(snapshot.clone(), quota).await?;
    let written = tokio::select! {
        written = timeout(SNAPSHOT_TIMEOUT, write(world, used, &snapshot.id, most)) => {
            written.unwrap_or(Err(Error::SnapshotTooSlow))
        }
        () = used.wait_for_end() => Err(Error::SandboxEnded),
    };
    let ready = match written {
        Ok(bytes) => {
            (snapshot.size_bytes, snapshot.ready) = (bytes, Some(Timestamp::now()));
            let at = snapshot.ready.unwrap_or(snapshot.created);
            world
                .store
                .mark_snapshot_ready(&snapshot.tenant, &snapshot.id, bytes, at)
                .await
                .map_err(Error::from)
        }
        Err(error) => Err(error),
    };
    match ready {
        Ok(()) => Ok(snapshot),
        Err(error) => {
            discard(world, &snapshot).await;
            Err(error)
        }
    }
}

async fn write(world: &AppState, used: &SandboxInUse, id: &SnapshotId, most: u64) -> Result<u64, Error> {
    let source = used.living.files().snapshot().await?;
    Ok(world.places.write_snapshot(id.as_str(), source, most).await?)
}

/// Removes a failed snapshot. Anything that cannot be removed now is removed at the next start.
async fn discard(world: &AppState, snapshot: &Snapshot) {
    let file = world.places.remove_snapshot(snapshot.id.as_str()).await;
    let row = world.store.remove_snapshot(&snapshot.tenant, &snapshot.id).await;
    if let Err(error) = row {
        tracing::error!(snapshot = %snapshot.id, %error, "cannot remove the record of a failed snapshot");
    }
    match file {
        Ok(()) | Err(HostStorageError::Missing) => {}
        Err(error) => tracing::error!(snapshot = %snapshot.id, %error, "cannot remove a failed snapshot"),
    }
}

/// Lists the tenant's snapshots, newest first.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots",
    responses((status = 200, description = "All snapshots of the tenant", body = ref(schema::response::<SnapshotList>()))))]
pub(crate) async fn list(
    State(world): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
) -> Result<SortedJson<SnapshotList>, Error> {
    Ok(SortedJson(SnapshotList { snapshots: world.store.snapshots(&caller.tenant).await? }))
}

/// Returns a snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{id}", tag = "snapshots",
    params(("id" = String, Path, description = "Snapshot id")),
    responses((status = 200, description = "The snapshot", body = ref(schema::response::<Snapshot>())),
        (status = 404, description = "No such snapshot in this tenant")))]
pub(crate) async fn show(
    State(world): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    Path(id): Path<String>,
) -> Result<SortedJson<Snapshot>, Error> {
    Ok(SortedJson(find(&world, &caller, &id).await?))
}

/// Removes a snapshot.
///
/// Sandboxes created from it keep their files.
#[utoipa::path(delete, path = "/v1/snapshots/{id}", tag = "snapshots",
    params(("id" = String, Path, description = "Snapshot id")),
    responses((status = 204, description = "The snapshot is removed"),
        (status = 404, description = "No such snapshot in this tenant"),
        (status = 409, description = "The snapshot is still being created")))]
pub(crate) async fn remove(
    State(world): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    Path(id): Path<String>,
) -> Result<StatusCode, Error> {
    run_uncancellable(async move { remove_snapshot(&world, &caller, &id).await }).await
}

async fn remove_snapshot(world: &AppState, caller: &Caller, id: &str) -> Result<StatusCode, Error> {
    let snapshot = find(world, caller, id).await?;
    if snapshot.ready.is_none() {
        return Err(Error::SnapshotInProgress);
    }
    world.store.remove_snapshot(&caller.tenant, &snapshot.id).await?;
    if let Err(error) = world.places.remove_snapshot(snapshot.id.as_str()).await {
        tracing::error!(snapshot = %snapshot.id, %error, "cannot remove a snapshot's file now");
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Returns a snapshot of the caller's tenant. A malformed id is reported as an unknown one.
async fn find(world: &AppState, caller: &Caller, id: &str) -> Result<Snapshot, Error> {
    let id: SnapshotId = id.parse().map_err(|_| Error::NotFound("snapshot"))?;
    world.store.snapshot(&caller.tenant, &id).await?.ok_or(Error::NotFound("snapshot"))
}

/// Returns the snapshot that a new sandbox starts from.
pub(crate) async fn resolve_snapshot(
    world: &AppState,
    caller: &Caller,
    wanted: Option<&str>,
) -> Result<Option<SnapshotId>, Error> {
    let Some(id) = wanted else { return Ok(None) };
    match find(world, caller, id).await {
        Ok(snapshot) if snapshot.ready.is_some() => Ok(Some(snapshot.id)),
        Ok(_) | Err(Error::NotFound(_)) => {
            let message = format!("no such snapshot: '{}'", id.escape_debug());
            Err(Error::Invalid { field: "snapshot", message })
        }
        Err(error) => Err(error),
    }
}

/// Unpacks a snapshot into a sandbox.
pub(crate) async fn restore(
    world: &AppState,
    living: &dyn SandboxHandle,
    id: &SnapshotId,
    disk_bytes: u64,
) -> Result<(), Error> {
    let source = world.places.read_snapshot(id.as_str()).await?;
    let limits =
        ArchiveLimits { entries: MAX_ENTRIES, bytes: disk_bytes, any_link: true, ..Default::default() };
    living.files().upload_archive(WORKSPACE, ArchiveFormat::Tar, limits, source).await?;
    Ok(())
}
