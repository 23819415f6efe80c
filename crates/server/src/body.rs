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
use crate::error::Error;
use crate::fair_share::{FairShare, Tenure};
use crate::share_pool::{OtherTenants, ShareKind, SharePool, ShareReservation};

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
    pub(crate) hold: BodyReservation,
}

impl FromRequest<Arc<AppState>> for JsonBody {
    type Rejection = Error;

    async fn from_request(request: Request, world: &Arc<AppState>) -> Result<Self, Error> {
        check_type(request.headers(), &["json"])?;
        let settings = &world.settings;
        // Handlers extract the caller first, so an unauthenticated body is never read.
        let SendingTenant(tenant) = request.extensions().get().ok_or(Error::Unauthorized)?;
        let hold = world.bodies.reserve(tenant);
        let reading = read(request.into_body(), settings.max_body, hold);
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

async fn read(mut body: Body, limit: usize, mut hold: BodyReservation) -> Result<JsonBody, Error> {
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
        hold.grow_to(bytes.len() + data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok(JsonBody { bytes, hold })
}

pub(crate) fn too_large(limit: usize) -> Error {
    Error::TooLarge(show_bytes(limit as u64))
}

/// The memory for arriving bodies and for the requests parsed from them. There are two pools because a body
/// lives for seconds, but a request for as long as it waits and runs: queued requests must not keep others
/// from sending.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    arriving: SharePool<TenantName>,
    requests: SharePool<TenantName>,
}

impl BodyMemory {
    /// Creates two pools of `total` bytes each, in which a tenant's half holds at least the longest body.
    pub(crate) fn new(total: usize, max_body: usize, rivals: &OtherTenants) -> Self {
        let total = total.max(max_body.saturating_mul(3)) as u64;
        let pool = |kind| SharePool::new(kind, FairShare::with_reserve_within(total), rivals);
        Self { arriving: pool(ShareKind::Bodies), requests: pool(ShareKind::Requests) }
    }

    /// Returns an empty reservation for a body of a tenant.
    pub(crate) fn reserve(&self, tenant: &TenantName) -> BodyReservation {
        BodyReservation { arriving: self.arriving.empty_reservation(tenant), requests: self.requests.clone() }
    }

    pub(crate) fn share_refusals(&self) -> [(&'static str, u64); 2] {
        [self.arriving.share_refusals(), self.requests.share_refusals()]
    }
}

/// The memory reserved for a body while it arrives and is parsed.
#[derive(Debug)]
pub(crate) struct BodyReservation {
    arriving: ShareReservation<TenantName>,
    requests: SharePool<TenantName>,
}

/// The memory reserved for a request while it waits and runs.
#[derive(Debug)]
pub(crate) struct RequestReservation {
    _bytes: ShareReservation<TenantName>,
}

impl BodyReservation {
    /// Grows the reservation to this many bytes.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), Error> {
        self.arriving.grow_to(bytes as u64, Tenure::Brief)
    }

    /// Splits off the reservation of one line of a longer body.
    pub(crate) fn split(&mut self, bytes: usize) -> Self {
        Self { arriving: self.arriving.split(bytes as u64), requests: self.requests.clone() }
    }

    /// Moves the reservation from the arriving bodies to the requests.
    pub(crate) fn into_request(self) -> Result<RequestReservation, Error> {
        let (tenant, bytes) = (self.arriving.party(), self.arriving.amount());
        let taken = self.requests.take(tenant, bytes, None, Tenure::Lasting);
        Ok(RequestReservation { _bytes: taken.map_err(|no| self.requests.error(no))? })
    }
}
