//! `/v1/snapshots`: copies of a sandbox's files.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_store::Snapshot;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;
use crate::app_state::AppState;
use crate::error::Error;
use crate::http::body::{JsonBody, SortedJson, parse};
use crate::http::callers::SandboxCaller;
use crate::sandboxes::lifecycle;
use crate::storage::snapshots;

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
    State(state): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Response, Error> {
    let new: SnapshotBody = parse(body)?;
    let used = lifecycle::find(&state, &caller, &id).await?;
    let snapshot = snapshots::create(state, &caller, used, new.label).await?;
    let location = [(header::LOCATION, format!("/v1/snapshots/{}", snapshot.id))];
    Ok((StatusCode::CREATED, location, SortedJson(snapshot)).into_response())
}

/// Lists the tenant's snapshots, newest first.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots",
    responses((status = 200, description = "All snapshots of the tenant", body = ref(schema::response::<SnapshotList>()))))]
pub(crate) async fn list(
    State(state): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
) -> Result<SortedJson<SnapshotList>, Error> {
    Ok(SortedJson(SnapshotList { snapshots: state.store.snapshots(&caller.tenant).await? }))
}

/// Returns a snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{id}", tag = "snapshots",
    params(("id" = String, Path, description = "Snapshot id")),
    responses((status = 200, description = "The snapshot", body = ref(schema::response::<Snapshot>())),
        (status = 404, description = "No such snapshot in this tenant")))]
pub(crate) async fn show(
    State(state): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    Path(id): Path<String>,
) -> Result<SortedJson<Snapshot>, Error> {
    Ok(SortedJson(snapshots::find(&state, &caller, &id).await?))
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
    State(state): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    Path(id): Path<String>,
) -> Result<StatusCode, Error> {
    snapshots::remove(state, caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
