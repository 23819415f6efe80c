//! Middleware around all requests: request ids, Host and Origin checks, uniform errors, logging.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::dialect::Dialect;
use super::problem::{PassThrough, http_status};
use super::request_id::RequestId;
use crate::app_state::AppState;
use crate::dialects;
use crate::error::Error;

/// The state of the middleware of one listener.
#[derive(Debug, Clone)]
pub(crate) struct Listening {
    pub(crate) state: Arc<AppState>,
    /// The dialect of a listener that serves only one; on the main port, the path decides.
    pub(crate) only: Option<&'static Dialect>,
}

/// Checks a request, runs its handler, and completes, counts, traces and logs the response.
pub(crate) async fn handle_request(
    State(Listening { state, only }): State<Listening>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let id = RequestId::new();
    let dialect = only.unwrap_or_else(|| dialects::by_path(request.uri().path()));
    request.extensions_mut().insert(dialect);
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    request.extensions_mut().insert(id.clone());
    let traced = state.tracer.as_ref().map(|tracer| (tracer, tracer.request(request.headers())));
    let response = match (check_host_and_origin(&state, dialect, &request), &traced) {
        (Ok(()), None) => next.run(request).await,
        (Ok(()), Some((_, traced))) => traced.within(next.run(request)).await,
        (Err(error), _) => error.into_response(),
    };
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    let response = finish_response(&state, dialect, response, &id);
    state.metrics.answered(&method, route, response.status());
    if let Some((tracer, request)) = traced {
        tracer.answered(&request, id.to_string(), &method, route, response.status());
    }
    tracing::debug!(
        request_id = %id, %method, route, status = response.status().as_u16(),
        ms = started.elapsed().as_micros() as f64 / 1_000.0, "answered"
    );
    response
}

fn check_host_and_origin(state: &AppState, dialect: &Dialect, request: &Request) -> Result<(), Error> {
    let text = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let host = text(header::HOST).unwrap_or_default();
    // Without keys, a web page whose domain resolves to 127.0.0.1 (DNS rebinding) must be refused.
    if state.settings.without_keys && !is_loopback(host) {
        return Err(Error::Misdirected);
    }
    // A WebSocket starts as a GET that any web page may send and is then bidirectional.
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS)
        && !request.headers().contains_key(header::UPGRADE)
        && !dialect.checks_all_origins;
    match request.headers().get(header::ORIGIN) {
        Some(origin) if !reads && !is_allowed_origin(origin, host, &state.settings.origins) => {
            Err(Error::ForeignOrigin)
        }
        _ => Ok(()),
    }
}

fn is_allowed_origin(origin: &HeaderValue, host: &str, listed: &[String]) -> bool {
    let origin = origin.to_str().unwrap_or_default();
    is_same_origin(origin, host) || listed.iter().any(|listed| listed == origin)
}

/// Returns a CORS layer for the listed origins, or `None` if there are none.
pub(crate) fn cors_layer(origins: &[String]) -> Option<CorsLayer> {
    let methods = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let exposed = dialects::DIALECTS.iter().flat_map(|dialect| dialect.exposed_headers).copied();
    let exposed: Vec<_> = exposed.chain(["x-request-id"]).map(HeaderName::from_static).collect();
    let layer = CorsLayer::new().allow_origin(AllowOrigin::list(
        origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()),
    ));
    let layer =
        layer.allow_methods(methods).allow_headers(AllowHeaders::mirror_request()).expose_headers(exposed);
    (!origins.is_empty()).then_some(layer)
}

fn is_same_origin(origin: &str, host: &str) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
}

fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    matches!(name, "localhost" | "127.0.0.1" | "::1")
}

/// Has the dialect render an error, and gives every response its request id.
fn finish_response(state: &AppState, dialect: &Dialect, mut response: Response, id: &RequestId) -> Response {
    let status = response.status();
    let passed = response.extensions().get::<PassThrough>().is_some();
    if !passed && (status.is_client_error() || status.is_server_error()) {
        let error = response.extensions_mut().remove::<Error>().unwrap_or_else(|| framework_error(status));
        if http_status(error.code()).is_server_error() {
            tracing::warn!(request_id = %id, code = ?error.code(), detail = %error, "refused");
        }
        state.metrics.refused(error.code());
        let (rendered, body) = (dialect.render_error)(&error, id).into_parts();
        *response.status_mut() = rendered.status;
        *response.body_mut() = body;
        response.headers_mut().remove(header::CONTENT_LENGTH);
        response.headers_mut().extend(rendered.headers);
    }
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::try_from(id.to_string()) {
        headers.insert("x-request-id", value);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns the error for a status that axum itself produced.
fn framework_error(status: StatusCode) -> Error {
    match status {
        StatusCode::METHOD_NOT_ALLOWED => Error::MethodNotAllowed,
        StatusCode::NOT_FOUND => Error::NotFound("place"),
        status if status.is_client_error() => {
            Error::Invalid { field: "request", message: "the path is not valid".to_owned() }
        }
        _ => Error::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_hosts_and_same_origins_are_recognized() {
        for ours in ["localhost", "127.0.0.1:7117", "[::1]:7117"] {
            assert!(is_loopback(ours), "{ours}");
        }
        for theirs in ["", "evil.test", "127.0.0.1.evil.test:7117", "localhost.evil.test"] {
            assert!(!is_loopback(theirs), "{theirs}");
        }
        assert!(is_same_origin("http://127.0.0.1:7117", "127.0.0.1:7117"));
        assert!(!is_same_origin("http://evil.test", "127.0.0.1:7117") && !is_same_origin("null", "null"));
    }
}
