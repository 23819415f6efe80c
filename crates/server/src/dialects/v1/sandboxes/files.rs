//! Files of a sandbox: read, write, list, move, remove. Paths are resolved inside, as the sandbox user.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use belljar_engine::sandbox_handle::{
    Failure, FailureKind, FileKind, FileMetadata, SandboxError, WriteMode, WriteOptions,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::paths::{self, FileInfo, FolderEntry};
use crate::app_state::AppState;
use crate::dialects::v1::schema;
use crate::error::Error;
use crate::http::body::{JsonBody, SortedJson, parse};
use crate::http::download::download_headers;
use crate::http::query::Query;
use crate::http::range::ByteRange;
use crate::sandboxes::live_sandbox::SandboxInUse;
use crate::sandboxes::transfer::{UploadReader, download};

/// Maximum number of directory entries in one response.
const MAX_PAGE_SIZE: u32 = 256;

/// Reads a file or a range of it.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files", tag = "files",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("path" = String, Query, description = "Path of the file: absolute, or relative to /workspace"),
        ("Range" = Option<String>, Header, description = "A single range of bytes"),
    ),
    responses(
        (status = 200, description = "The content of the file", body = ref(schema::response::<schema::Bytes>()),
            content_type = "application/octet-stream"),
        (status = 206, description = "The requested range", body = ref(schema::response::<schema::Bytes>()),
            content_type = "application/octet-stream"),
        (status = 404, description = "No such file or sandbox"),
        (status = 409, description = "Not a regular file, or the sandbox is paused"),
        (status = 416, description = "The range is outside the file"),
    )
)]
pub(crate) async fn read(
    used: SandboxInUse,
    method: Method,
    headers: HeaderMap,
    query: RawQuery,
) -> Result<Response, Error> {
    let query = Query::parse(query, &["path"])?;
    let path = paths::from_query(&query)?;
    match ByteRange::from_headers(&headers) {
        _ if method == Method::HEAD => head(&used, path).await,
        Some(range) => read_range(used, path, range).await,
        None => read_whole(used, path).await,
    }
}

/// Answers HEAD requests from the metadata, without reading the file.
async fn head(used: &SandboxInUse, path: &str) -> Result<Response, Error> {
    let metadata = used.living.files().stat(path, true).await?;
    let wrong = |kind, message| Err(SandboxError::from(Failure::new(kind, path, message)).into());
    match metadata.kind {
        FileKind::File => Ok(file_response(path, known_length(&metadata), Body::empty())),
        FileKind::Directory => wrong(FailureKind::IsADirectory, "is a directory"),
        FileKind::Link | FileKind::Other => wrong(FailureKind::NotAFile, "not a regular file"),
    }
}

async fn read_whole(used: SandboxInUse, path: &str) -> Result<Response, Error> {
    let (metadata, source) = used.living.files().read(path, 0, None).await?;
    let length = known_length(&metadata);
    Ok(file_response(path, length, download(used, source, length)))
}

async fn read_range(used: SandboxInUse, path: &str, range: ByteRange) -> Result<Response, Error> {
    let files = used.living.files();
    // A suffix range needs the size first. The size at the time of reading is what counts.
    let (first, count) = match range {
        ByteRange::From(first, last) => (first, last.map(|last| (last - first).saturating_add(1))),
        ByteRange::Last(count) => (files.stat(path, true).await?.size.saturating_sub(count), Some(count)),
    };
    let (metadata, source) = files.read(path, first, count).await?;
    let size = metadata.size;
    let read = ByteRange::From(first, count.and_then(|count| first.saturating_add(count).checked_sub(1)));
    let (first, length) = read.within(size).ok_or(Error::Range(size))?;
    let mut response = file_response(path, Some(length), download(used, source, Some(length)));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    let range = format!("bytes {first}-{}/{size}", first + length - 1);
    if let Ok(range) = range.try_into() {
        response.headers_mut().insert(header::CONTENT_RANGE, range);
    }
    Ok(response)
}

/// Returns the length, if it is known. A size of 0 may be wrong: files in `/proc` report it with content.
fn known_length(metadata: &FileMetadata) -> Option<u64> {
    Some(metadata.size).filter(|size| *size > 0)
}

fn file_response(path: &str, length: Option<u64>, body: Body) -> Response {
    let head = download_headers(path, "", "application/octet-stream");
    let mut response = (head, [(header::ACCEPT_RANGES, "bytes")], body).into_response();
    if let Some(length) = length {
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    response
}

/// Result of writing a file.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WrittenFile {
    /// Number of bytes written.
    bytes: u64,
}

/// Writes the body to a file while it arrives.
#[utoipa::path(
    put, path = "/v1/sandboxes/{id}/files", tag = "files",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("path" = String, Query, description = "Path of the file: absolute, or relative to /workspace"),
        ("mode" = Option<String>, Query,
            description = "create (fails if the file exists), replace (default) or append"),
        ("offset" = Option<u64>, Query,
            description = "Instead of a mode: offset to write at, keeping the rest of the file"),
        ("atomic" = Option<bool>, Query, description = "Whether the file appears only once it is complete"),
        ("parents" = Option<bool>, Query,
            description = "Whether to create missing directories; default true"),
        ("permissions" = Option<String>, Query,
            description = "Permission bits of a new file in octal, for example 0644"),
    ),
    request_body(content = ref(schema::request::<schema::Bytes>()), content_type = "application/octet-stream",
        description = "Content of the file"),
    responses(
        (status = 200, description = "Number of bytes written", body = ref(schema::response::<WrittenFile>())),
        (status = 408, description = "The body stalled"),
        (status = 409, description = "The path is occupied, or the disk is full"),
        (status = "4XX", description = "The request was refused"),
    )
)]
pub(crate) async fn write(
    State(state): State<Arc<AppState>>,
    used: SandboxInUse,
    query: RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<WrittenFile>, Error> {
    let query = Query::parse(query, &["path", "mode", "offset", "atomic", "parents", "permissions"])?;
    let (path, options) = (paths::from_query(&query)?, write_options(&query)?);
    let source = upload(&state, &headers, body)?;
    let bytes = used.living.files().write(path, options, source).await?;
    Ok(Json(WrittenFile { bytes }))
}

/// Returns a body as a byte source. Refuses a `Content-Encoding`, because it would be stored undecoded.
pub(super) fn upload(
    state: &AppState,
    headers: &HeaderMap,
    body: Body,
) -> Result<belljar_engine::sandbox_handle::ByteSource<'static>, Error> {
    if headers.contains_key(header::CONTENT_ENCODING) {
        let message = "is not supported; send the bytes unencoded".to_owned();
        return Err(Error::Invalid { field: "Content-Encoding", message });
    }
    Ok(UploadReader::source(body, state.settings.body_timeout))
}

fn write_options(query: &Query) -> Result<WriteOptions, Error> {
    let invalid = |message: &str| Error::Invalid { field: "mode", message: message.to_owned() };
    let mode = match (query.get("mode"), query.parsed("offset")?) {
        (None | Some("replace"), None) => WriteMode::Replace,
        (Some("create"), None) => WriteMode::Create,
        (Some("append"), None) => WriteMode::Append,
        (None, Some(offset)) => WriteMode::At(offset),
        (Some(_), None) => return Err(invalid("must be create, replace or append")),
        (Some(_), Some(_)) => return Err(invalid("cannot be combined with offset")),
    };
    let usual = WriteOptions::default();
    Ok(WriteOptions {
        mode,
        atomic: query.parsed("atomic")?.unwrap_or(usual.atomic),
        parents: query.parsed("parents")?.unwrap_or(usual.parents),
        permissions: query.get("permissions").map(paths::permissions).transpose()?,
    })
}

/// Removes a file, link or directory.
///
/// Links are not followed.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}/files", tag = "files",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("path" = String, Query, description = "Path: absolute, or relative to /workspace"),
        ("recursive" = Option<bool>, Query, description = "Whether to remove a directory that is not empty"),
    ),
    responses(
        (status = 204, description = "The file is removed"),
        (status = 404, description = "No such file or sandbox"),
        (status = 409, description = "The directory is not empty"),
    )
)]
pub(crate) async fn remove(used: SandboxInUse, query: RawQuery) -> Result<StatusCode, Error> {
    let query = Query::parse(query, &["path", "recursive"])?;
    let recursive = query.parsed("recursive")?.unwrap_or(false);
    used.living.files().remove(paths::from_query(&query)?, recursive).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the metadata of a file.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files/stat", tag = "files",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("path" = String, Query, description = "Path: absolute, or relative to /workspace"),
        ("follow" = Option<bool>, Query,
            description = "Whether to describe a link's target instead of the link"),
    ),
    responses(
        (status = 200, description = "The file's metadata", body = ref(schema::response::<FileInfo>())),
        (status = 404, description = "No such file or sandbox"),
    )
)]
pub(crate) async fn stat(used: SandboxInUse, query: RawQuery) -> Result<Json<FileInfo>, Error> {
    let query = Query::parse(query, &["path", "follow"])?;
    let follow = query.parsed("follow")?.unwrap_or(false);
    let metadata = used.living.files().stat(paths::from_query(&query)?, follow).await?;
    Ok(Json(metadata.into()))
}

/// A page of a directory listing.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FolderPage {
    /// Entries, sorted by name.
    entries: Vec<FolderEntry>,
    /// Cursor of the next page; null on the last page.
    next_cursor: Option<String>,
}

/// Lists a directory, sorted by name.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files/list", tag = "files",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("path" = String, Query, description = "Path of the directory: absolute, or relative to /workspace"),
        ("limit" = Option<u32>, Query, description = "Page size, 1 to 256; default 256"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses(
        (status = 200, description = "A page of entries; shorter than the limit if names are long",
            body = ref(schema::response::<FolderPage>())),
        (status = 404, description = "No such directory or sandbox"),
        (status = 409, description = "Not a directory"),
    )
)]
pub(crate) async fn list(used: SandboxInUse, query: RawQuery) -> Result<SortedJson<FolderPage>, Error> {
    let query = Query::parse(query, &["path", "limit", "cursor"])?;
    let invalid = |field, message: &str| Error::Invalid { field, message: message.to_owned() };
    let limit = query.parsed("limit")?.unwrap_or(MAX_PAGE_SIZE);
    if !(1..=MAX_PAGE_SIZE).contains(&limit) {
        return Err(invalid("limit", "must be from 1 to 256"));
    }
    let after = query.get("cursor").map(|text| URL_SAFE_NO_PAD.decode(text)).transpose();
    let after = after.map_err(|_| invalid("cursor", "is not a cursor of this server"))?;
    let page = used.living.files().list(paths::from_query(&query)?, after, limit).await?;
    let entries = page.entries.into_iter().map(FolderEntry::from).collect();
    let next_cursor = page.next.map(|next| URL_SAFE_NO_PAD.encode(next));
    Ok(SortedJson(FolderPage { entries, next_cursor }))
}

/// A directory to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewFolder")]
struct NewFolderBody {
    /// Path of the directory.
    path: String,
    /// Whether to create missing parents and accept an existing directory.
    #[serde(default = "usually")]
    parents: bool,
    /// Permission bits in octal, for example 0755.
    permissions: Option<String>,
}

fn usually() -> bool {
    true
}

/// Creates a directory.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/files/folder", tag = "files",
    params(("id" = String, Path, description = "Sandbox id")),
    request_body = ref(schema::request::<NewFolderBody>()),
    responses(
        (status = 201, description = "The new directory", body = ref(schema::response::<FileInfo>())),
        (status = 409, description = "The path is occupied"),
        (status = "4XX", description = "The request was refused"),
    )
)]
pub(crate) async fn make_folder(
    used: SandboxInUse,
    body: JsonBody,
) -> Result<(StatusCode, Json<FileInfo>), Error> {
    let new: NewFolderBody = parse(body)?;
    let path = paths::check_path("path", &new.path)?;
    let permissions = new.permissions.as_deref().map(paths::permissions).transpose()?;
    let files = used.living.files();
    files.make_folder(path, new.parents, permissions).await?;
    let made = files.stat(path, true).await?;
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// A file or directory to move.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Move")]
struct MoveBody {
    /// Current path.
    from: String,
    /// New path.
    to: String,
    /// Whether to replace an existing file at the new path.
    #[serde(default)]
    replace: bool,
}

/// Moves or renames a file or directory.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/files/move", tag = "files",
    params(("id" = String, Path, description = "Sandbox id")),
    request_body = ref(schema::request::<MoveBody>()),
    responses(
        (status = 204, description = "The file is moved"),
        (status = 404, description = "No such file or sandbox"),
        (status = 409, description = "The new path is occupied"),
    )
)]
pub(crate) async fn rename(used: SandboxInUse, body: JsonBody) -> Result<StatusCode, Error> {
    let asked: MoveBody = parse(body)?;
    let (from, to) = (paths::check_path("from", &asked.from)?, paths::check_path("to", &asked.to)?);
    used.living.files().rename(from, to, asked.replace).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Permissions of a file to set.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Permissions")]
struct PermissionsBody {
    /// Path of the file.
    path: String,
    /// Permission bits in octal, for example 0644.
    permissions: String,
}

/// Sets the permissions of a file or directory.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/files/permissions", tag = "files",
    params(("id" = String, Path, description = "Sandbox id")),
    request_body = ref(schema::request::<PermissionsBody>()),
    responses(
        (status = 204, description = "The permissions are set"),
        (status = 404, description = "No such file or sandbox"),
        (status = 422, description = "Invalid permission bits, or setuid/setgid"),
    )
)]
pub(crate) async fn set_permissions(used: SandboxInUse, body: JsonBody) -> Result<StatusCode, Error> {
    let asked: PermissionsBody = parse(body)?;
    let path = paths::check_path("path", &asked.path)?;
    used.living.files().set_mode(path, paths::permissions(&asked.permissions)?).await?;
    Ok(StatusCode::NO_CONTENT)
}
