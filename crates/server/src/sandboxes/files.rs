//! Files of a sandbox: read, write, list, move, remove. Each path is resolved inside, as the sandbox user.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use belljar_engine::living::{
    Failure, FailureKind, FileKind, LivingError, Metadata, WriteMode, WriteOptions,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::open::Used;
use super::paths;
use super::range::Range;
use super::transfer::{Upload, download};
use crate::body::{Whole, parse};
use crate::error::Error;
use crate::query::Query;
use crate::schema;
use crate::world::World;

/// Entries of a folder in one answer.
const PAGE: u32 = 256;

/// Reads a file, or a part of it.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files", tag = "files",
    params(
        ("id" = String, Path),
        ("path" = String, Query, description = "Absolute, or relative to /workspace"),
        ("Range" = Option<String>, Header, description = "One range of bytes"),
    ),
    responses(
        (status = 200, description = "Its bytes", body = schema::Bytes, content_type = "application/octet-stream"),
        (status = 206, description = "The part", body = schema::Bytes, content_type = "application/octet-stream"),
        (status = 404, description = "No such file or sandbox", body = schema::Problem),
        (status = 409, description = "It is a folder, a device or a pipe; or the sandbox is paused", body = schema::Problem),
        (status = 416, description = "It has no such part", body = schema::Problem),
    )
)]
pub(crate) async fn read(
    used: Used,
    method: Method,
    headers: HeaderMap,
    query: RawQuery,
) -> Result<Response, Error> {
    let query = Query::parse(query, &["path"])?;
    let path = paths::of(&query)?;
    match Range::of(&headers) {
        _ if method == Method::HEAD => head(&used, path).await,
        Some(range) => part(used, path, range).await,
        None => whole(used, path).await,
    }
}

/// What is known without reading.
async fn head(used: &Used, path: &str) -> Result<Response, Error> {
    let metadata = used.living.files().stat(path, true).await?;
    let wrong = |kind, message| Err(LivingError::from(Failure::new(kind, path, message)).into());
    match metadata.kind {
        FileKind::File => Ok(answer(path, length_of(&metadata), Body::empty())),
        FileKind::Directory => wrong(FailureKind::IsADirectory, "is a folder"),
        FileKind::Link | FileKind::Other => wrong(FailureKind::NotAFile, "not a regular file"),
    }
}

async fn whole(used: Used, path: &str) -> Result<Response, Error> {
    let (metadata, source) = used.living.files().read(path, 0, None).await?;
    let length = length_of(&metadata);
    Ok(answer(path, length, download(used, source, length)))
}

async fn part(used: Used, path: &str, range: Range) -> Result<Response, Error> {
    let files = used.living.files();
    // What the end is only the length tells; what it is when the file is read counts.
    let (first, count) = match range {
        Range::From(first, last) => (first, last.map(|last| (last - first).saturating_add(1))),
        Range::Last(count) => (files.stat(path, true).await?.size.saturating_sub(count), Some(count)),
    };
    let (metadata, source) = files.read(path, first, count).await?;
    let size = metadata.size;
    let read = Range::From(first, count.and_then(|count| first.saturating_add(count).checked_sub(1)));
    let (first, length) = read.within(size).ok_or(Error::Range(size))?;
    let mut response = answer(path, Some(length), download(used, source, Some(length)));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    let place = format!("bytes {first}-{}/{size}", first + length - 1);
    if let Ok(place) = place.try_into() {
        response.headers_mut().insert(header::CONTENT_RANGE, place);
    }
    Ok(response)
}

/// Files that say they are empty may not be: those in `/proc` do not know their size.
fn length_of(metadata: &Metadata) -> Option<u64> {
    Some(metadata.size).filter(|size| *size > 0)
}

fn answer(path: &str, length: Option<u64>, body: Body) -> Response {
    let head = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, paths::attachment(path, "")),
        (header::ACCEPT_RANGES, "bytes".to_owned()),
    ];
    let mut response = (head, body).into_response();
    if let Some(length) = length {
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    response
}

/// Writes a file with the bytes of the body, as they come.
#[utoipa::path(
    put, path = "/v1/sandboxes/{id}/files", tag = "files",
    params(
        ("id" = String, Path),
        ("path" = String, Query, description = "Absolute, or relative to /workspace"),
        ("mode" = Option<String>, Query, description = "create (nothing may be there), replace (the usual) or append"),
        ("offset" = Option<u64>, Query, description = "Instead of a mode: to this place, and what is there stays around it"),
        ("atomic" = Option<bool>, Query, description = "Nobody ever sees half of it"),
        ("parents" = Option<bool>, Query, description = "Makes missing folders, unless false"),
        ("permissions" = Option<String>, Query, description = "Of a new file, as in 0644"),
    ),
    request_body(content = schema::Bytes, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "How many bytes", body = schema::WrittenFile),
        (status = 408, description = "The body stood still", body = schema::Problem),
        (status = 409, description = "Something is in the way, or the disk is full", body = schema::Problem),
        (status = "4XX", description = "Something about the request", body = schema::Problem),
    )
)]
pub(crate) async fn write(
    State(world): State<Arc<World>>,
    used: Used,
    query: RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Error> {
    let query = Query::parse(query, &["path", "mode", "offset", "atomic", "parents", "permissions"])?;
    let (path, options) = (paths::of(&query)?, write_options(&query)?);
    let source = upload(&world, &headers, body)?;
    let bytes = used.living.files().write(path, options, source).await?;
    Ok(Json(json!({"bytes": bytes})))
}

/// A body as it is: what is packed on the way only would be kept packed.
pub(super) fn upload(
    world: &World,
    headers: &HeaderMap,
    body: Body,
) -> Result<belljar_engine::living::ByteSource<'static>, Error> {
    if headers.contains_key(header::CONTENT_ENCODING) {
        let message = "is not undone here; send the bytes as they are".to_owned();
        return Err(Error::Invalid { field: "Content-Encoding", message });
    }
    Ok(Upload::source(body, world.settings.body_timeout))
}

fn write_options(query: &Query) -> Result<WriteOptions, Error> {
    let invalid = |message: &str| Error::Invalid { field: "mode", message: message.to_owned() };
    let mode = match (query.get("mode"), query.parsed("offset")?) {
        (None | Some("replace"), None) => WriteMode::Replace,
        (Some("create"), None) => WriteMode::Create,
        (Some("append"), None) => WriteMode::Append,
        (None, Some(offset)) => WriteMode::At(offset),
        (Some(_), None) => return Err(invalid("is create, replace or append")),
        (Some(_), Some(_)) => return Err(invalid("goes with no offset")),
    };
    let usual = WriteOptions::default();
    Ok(WriteOptions {
        mode,
        atomic: query.parsed("atomic")?.unwrap_or(usual.atomic),
        parents: query.parsed("parents")?.unwrap_or(usual.parents),
        permissions: query.get("permissions").map(paths::permissions).transpose()?,
    })
}

/// Removes a file, a link or a folder. No link is followed.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}/files", tag = "files",
    params(
        ("id" = String, Path),
        ("path" = String, Query, description = "Absolute, or relative to /workspace"),
        ("recursive" = Option<bool>, Query, description = "Also a folder that is not empty"),
    ),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, description = "No such file or sandbox", body = schema::Problem),
        (status = 409, description = "The folder is not empty", body = schema::Problem),
    )
)]
pub(crate) async fn remove(used: Used, query: RawQuery) -> Result<StatusCode, Error> {
    let query = Query::parse(query, &["path", "recursive"])?;
    let recursive = query.parsed("recursive")?.unwrap_or(false);
    used.living.files().remove(paths::of(&query)?, recursive).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What is at a path.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files/stat", tag = "files",
    params(
        ("id" = String, Path),
        ("path" = String, Query, description = "Absolute, or relative to /workspace"),
        ("follow" = Option<bool>, Query, description = "Where a link points, instead of the link"),
    ),
    responses(
        (status = 200, description = "It", body = schema::FileInfo),
        (status = 404, description = "No such file or sandbox", body = schema::Problem),
    )
)]
pub(crate) async fn stat(used: Used, query: RawQuery) -> Result<Json<Value>, Error> {
    let query = Query::parse(query, &["path", "follow"])?;
    let follow = query.parsed("follow")?.unwrap_or(false);
    let metadata = used.living.files().stat(paths::of(&query)?, follow).await?;
    Ok(Json(paths::shown(&metadata)))
}

/// A page of a folder, sorted by name.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files/list", tag = "files",
    params(
        ("id" = String, Path),
        ("path" = String, Query, description = "Absolute, or relative to /workspace"),
        ("limit" = Option<u32>, Query, description = "From 1 to 256, which is the usual"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "A page; shorter than the limit where names are long", body = schema::FolderPage),
        (status = 404, description = "No such folder or sandbox", body = schema::Problem),
        (status = 409, description = "It is no folder", body = schema::Problem),
    )
)]
pub(crate) async fn list(used: Used, query: RawQuery) -> Result<Json<Value>, Error> {
    let query = Query::parse(query, &["path", "limit", "cursor"])?;
    let invalid = |field, message: &str| Error::Invalid { field, message: message.to_owned() };
    let limit = query.parsed("limit")?.unwrap_or(PAGE);
    if !(1..=PAGE).contains(&limit) {
        return Err(invalid("limit", "is from 1 to 256"));
    }
    let after = query.get("cursor").map(|text| URL_SAFE_NO_PAD.decode(text)).transpose();
    let after = after.map_err(|_| invalid("cursor", "is none of ours"))?;
    let page = used.living.files().list(paths::of(&query)?, after, limit).await?;
    let entries: Vec<_> = page.entries.iter().map(paths::shown_entry).collect();
    let next = page.next.map(|next| URL_SAFE_NO_PAD.encode(next));
    Ok(Json(json!({"entries": entries, "next_cursor": next})))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewFolder {
    path: String,
    #[serde(default = "usually")]
    parents: bool,
    permissions: Option<String>,
}

fn usually() -> bool {
    true
}

/// Makes a folder.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/files/folder", tag = "files", params(("id" = String, Path)),
    request_body = schema::NewFolder,
    responses(
        (status = 201, description = "It is there", body = schema::FileInfo),
        (status = 409, description = "Something is in the way", body = schema::Problem),
        (status = "4XX", description = "Something about the request", body = schema::Problem),
    )
)]
pub(crate) async fn make_folder(used: Used, body: Whole) -> Result<(StatusCode, Json<Value>), Error> {
    let new: NewFolder = parse(body)?;
    let path = paths::checked("path", &new.path)?;
    let permissions = new.permissions.as_deref().map(paths::permissions).transpose()?;
    let files = used.living.files();
    files.make_folder(path, new.parents, permissions).await?;
    let made = files.stat(path, true).await?;
    Ok((StatusCode::CREATED, Json(paths::shown(&made))))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Move {
    from: String,
    to: String,
    #[serde(default)]
    replace: bool,
}

/// Gives a file or folder another name.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/files/move", tag = "files", params(("id" = String, Path)),
    request_body = schema::Move,
    responses(
        (status = 204, description = "It is there now"),
        (status = 404, description = "No such file or sandbox", body = schema::Problem),
        (status = 409, description = "Something is in the way", body = schema::Problem),
    )
)]
pub(crate) async fn rename(used: Used, body: Whole) -> Result<StatusCode, Error> {
    let asked: Move = parse(body)?;
    let (from, to) = (paths::checked("from", &asked.from)?, paths::checked("to", &asked.to)?);
    used.living.files().rename(from, to, asked.replace).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Permissions {
    path: String,
    permissions: String,
}

/// Sets the permissions of a file or folder.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/files/permissions", tag = "files", params(("id" = String, Path)),
    request_body = schema::Permissions,
    responses(
        (status = 204, description = "They are set"),
        (status = 404, description = "No such file or sandbox", body = schema::Problem),
        (status = 422, description = "They are none, or such as nobody may set", body = schema::Problem),
    )
)]
pub(crate) async fn set_permissions(used: Used, body: Whole) -> Result<StatusCode, Error> {
    let asked: Permissions = parse(body)?;
    let path = paths::checked("path", &asked.path)?;
    used.living.files().set_mode(path, paths::permissions(&asked.permissions)?).await?;
    Ok(StatusCode::NO_CONTENT)
}
