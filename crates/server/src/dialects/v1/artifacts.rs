//! `/v1/executions/{id}/artifacts/{path}`: downloads of what programs left below `./artifacts`.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_store::ExecutionId;
use futures_util::stream;
use serde::Deserialize;

use super::schema;
use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::error::Error;
use crate::executions::stored_result;
use crate::http::callers::RunCaller;
use crate::http::download::download_headers;

/// Downloads an artifact of an execution, as an attachment.
#[utoipa::path(
    get, path = "/v1/executions/{id}/artifacts/{path}", tag = "executions",
    params(
        ("id" = String, Path, description = "Execution id"),
        ("path" = String, Path, description = "Path of the file below ./artifacts; it may contain slashes"),
    ),
    responses(
        (status = 200, description = "The content of the file", body = ref(schema::response::<schema::Bytes>()),
            content_type = "application/octet-stream"),
        (status = 404, description = "No such execution in this tenant, or it has no such artifact"),
    )
)]
pub(crate) async fn download(
    State(state): State<Arc<AppState>>,
    RunCaller(caller): RunCaller,
    Path((id, path)): Path<(String, String)>,
) -> Result<Response, Error> {
    let id: ExecutionId = id.parse().map_err(|_| Error::NotFound("execution"))?;
    match state.store.artifact(&caller.tenant, &id, &path).await? {
        Some(found) => {
            let body = stored_content(state, caller, id, path.clone());
            Ok(response(&path, &found.media_type, found.size, body))
        }
        None => inline_artifact(&state, &caller, &id, &path).await,
    }
}

/// Returns the content of a stored artifact. One chunk is in memory at a time.
fn stored_content(state: Arc<AppState>, caller: Caller, id: ExecutionId, path: String) -> Body {
    Body::from_stream(stream::try_unfold(0, move |number| {
        let (state, caller, id, path) = (Arc::clone(&state), caller.clone(), id.clone(), path.clone());
        async move {
            let chunk = state.store.artifact_chunk(&caller.tenant, &id, &path, number).await;
            let chunk = chunk.map_err(|_| io::Error::other("the artifact cannot be read"))?;
            Ok::<_, io::Error>(chunk.map(|bytes| (Bytes::from(bytes), number + 1)))
        }
    }))
}

/// The artifacts of a stored result.
#[derive(Deserialize)]
struct StoredArtifacts {
    artifacts: Vec<InlineArtifact>,
}

#[derive(Deserialize)]
struct InlineArtifact {
    name: String,
    mime_type: String,
    content_base64: Option<String>,
}

/// Returns an artifact that is part of the result.
async fn inline_artifact(
    state: &AppState,
    caller: &Caller,
    id: &ExecutionId,
    path: &str,
) -> Result<Response, Error> {
    let json = stored_result(state, caller, id).await?;
    let stored: StoredArtifacts = serde_json::from_slice(&json).map_err(|_| Error::Internal)?;
    let found = stored.artifacts.into_iter().find(|artifact| artifact.name == path);
    let InlineArtifact { mime_type, content_base64, .. } = found.ok_or(Error::NotFound("artifact"))?;
    let content = STANDARD.decode(content_base64.unwrap_or_default()).map_err(|_| Error::Internal)?;
    Ok(response(path, &mime_type, content.len() as u64, Body::from(content)))
}

fn response(path: &str, media_type: &str, size: u64, body: Body) -> Response {
    let headers = download_headers(path, "", media_type);
    (headers, [(header::CONTENT_LENGTH, size)], body).into_response()
}
