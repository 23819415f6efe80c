//! Archives of whole directories. The guest packs and unpacks them, with bounds that an archive cannot
//! exceed.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use belljar_engine::sandbox_handle::{ArchiveFormat, ArchiveLimits};
use schemars::JsonSchema;
use serde::Serialize;

use super::files::upload;
use super::paths;
use crate::app_state::AppState;
use crate::dialects::v1::schema;
use crate::error::Error;
use crate::http::download::download_headers;
use crate::http::query::Query;
use crate::sandboxes::live_sandbox::SandboxInUse;
use crate::sandboxes::transfer::download;

/// Formats, with their file extension and media type.
const FORMATS: [(ArchiveFormat, &str, &str); 3] = [
    (ArchiveFormat::Tar, "tar", "application/x-tar"),
    (ArchiveFormat::TarGz, "tar.gz", "application/gzip"),
    (ArchiveFormat::Zip, "zip", "application/zip"),
];

/// Result of unpacking an archive.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Unpacked {
    /// Total size of the files in bytes.
    bytes: u64,
    /// Number of files, directories and links created.
    entries: u64,
}

fn format_of(query: &Query) -> Result<(ArchiveFormat, &'static str, &'static str), Error> {
    let name = query.get("format").unwrap_or("tar");
    let found = FORMATS.into_iter().find(|(_, known, _)| *known == name);
    found.ok_or_else(|| Error::Invalid { field: "format", message: "must be tar, tar.gz or zip".to_owned() })
}

/// Unpacks an archive into a directory.
///
/// On an error, entries that were already unpacked remain.
#[utoipa::path(
    put, path = "/v1/sandboxes/{id}/files/archive", tag = "files",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("path" = String, Query, description = "Path of the directory: absolute, or relative to /workspace"),
        ("format" = Option<String>, Query, description = "Format: tar (default), tar.gz or zip"),
    ),
    request_body(content = ref(schema::request::<schema::Bytes>()), content_type = "application/octet-stream",
        description = "The archive"),
    responses(
        (status = 200, description = "What was unpacked", body = ref(schema::response::<Unpacked>())),
        (status = 408, description = "The body stalled"),
        (status = 413, description = "The content exceeds the limits"),
        (status = 422, description = "Malformed, or contains an entry that is not allowed"),
        (status = "4XX", description = "The request was refused"),
    )
)]
pub(crate) async fn unpack(
    State(state): State<Arc<AppState>>,
    used: SandboxInUse,
    query: RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Unpacked>, Error> {
    let query = Query::parse(query, &["path", "format"])?;
    let (path, (format, ..)) = (paths::from_query(&query)?, format_of(&query)?);
    let most = state.settings.archives;
    let limits = ArchiveLimits { bytes: most.bytes.min(used.admitted.plan.limits.disk_bytes), ..most };
    let source = upload(&state, &headers, body)?;
    let unpacked = used.living.files().upload_archive(path, format, limits, source).await?;
    Ok(Json(Unpacked { bytes: unpacked.bytes, entries: unpacked.entries }))
}

/// Packs a directory into an archive, while it is read.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files/archive", tag = "files",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("path" = String, Query, description = "Path of the directory: absolute, or relative to /workspace"),
        ("format" = Option<String>, Query, description = "Format: tar (default), tar.gz or zip"),
    ),
    responses(
        (status = 200, description = "The archive", content(
            (ref(schema::response::<schema::Bytes>()) = "application/x-tar"), (ref(schema::response::<schema::Bytes>()) = "application/gzip"),
            (ref(schema::response::<schema::Bytes>()) = "application/zip"),
        )),
        (status = 404, description = "No such directory or sandbox"),
    )
)]
pub(crate) async fn pack(used: SandboxInUse, query: RawQuery) -> Result<Response, Error> {
    let query = Query::parse(query, &["path", "format"])?;
    let (path, (format, name, kind)) = (paths::from_query(&query)?, format_of(&query)?);
    let source = used.living.files().download_archive(path, format).await?;
    let head = download_headers(path, &format!(".{name}"), kind);
    Ok((head, download(used, source, None)).into_response())
}
