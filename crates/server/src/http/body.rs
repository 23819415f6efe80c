//! Request bodies: bounded in length and time, and by the tenant's share of the memory for all bodies.
//!
//! A body that announces more than its limit is not read at all. Files and archives are streamed instead
//! (`sandboxes/transfer.rs`).

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::quantity::show_bytes;
use belljar_store::TenantName;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::time::timeout;

use crate::app_state::AppState;
use crate::body_memory::BodyReservation;
use crate::error::Error;

/// A JSON response whose keys are sorted, in nested objects as well.
#[derive(Debug)]
pub(crate) struct SortedJson<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for SortedJson<T> {
    fn into_response(self) -> Response {
        match serde_json::to_value(self.0) {
            Ok(object) => Json(object).into_response(),
            Err(_) => Error::Internal.into_response(),
        }
    }
}

/// The tenant that sends a request. Inserted into the request's extensions once its key is known.
#[derive(Debug, Clone)]
pub(crate) struct SendingTenant(pub(crate) TenantName);

/// A complete JSON body, with its memory reservation, which is held until the body is parsed.
#[derive(Debug)]
pub(crate) struct JsonBody {
    pub(crate) bytes: Vec<u8>,
    pub(crate) reservation: BodyReservation,
}

impl FromRequest<Arc<AppState>> for JsonBody {
    type Rejection = Error;

    async fn from_request(request: Request, state: &Arc<AppState>) -> Result<Self, Error> {
        check_type(request.headers(), &["json"])?;
        let settings = &state.settings;
        // Handlers extract the caller first, so an unauthenticated body is never read.
        let SendingTenant(tenant) = request.extensions().get().ok_or(Error::Unauthorized)?;
        let reservation = state.body_memory.reserve(tenant);
        let reading = read(request.into_body(), settings.max_body, reservation);
        timeout(settings.body_timeout, reading).await.map_err(|_| Error::SlowBody)?
    }
}

/// Parses a JSON object and releases the body's memory. An empty body is an empty object.
pub(crate) fn parse<T: DeserializeOwned>(body: JsonBody) -> Result<T, Error> {
    parse_bytes(&body.bytes)
}

/// Parses the bytes of a body. Empty bytes are an empty object.
pub(crate) fn parse_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let bytes = if bytes.trim_ascii().is_empty() { b"{}" } else { bytes };
    Ok(belljar_engine::json::parse_object(bytes)?)
}

/// Refuses other content types. Browsers send cross-site forms without a preflight request, but not JSON.
pub(crate) fn check_type(headers: &HeaderMap, kinds: &[&str]) -> Result<(), Error> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let text = value.to_str().unwrap_or_default().to_ascii_lowercase();
    let kind = text.split(';').next().unwrap_or_default().trim();
    let fits = kind.strip_prefix("application/").is_some_and(|kind| {
        kinds.iter().any(|wanted| kind == *wanted || kind.ends_with(&format!("+{wanted}")))
    });
    if fits && !headers.contains_key(header::CONTENT_ENCODING) { Ok(()) } else { Err(Error::MediaType) }
}

async fn read(mut body: Body, limit: usize, mut reservation: BodyReservation) -> Result<JsonBody, Error> {
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large(limit));
    }
    // `Content-Length` reserves nothing: memory grows with what has arrived.
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Error::SlowBody)?.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(too_large(limit));
        }
        reservation.grow_to(bytes.len() + data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok(JsonBody { bytes, reservation })
}

pub(crate) fn too_large(limit: usize) -> Error {
    Error::TooLarge(show_bytes(limit as u64))
}
