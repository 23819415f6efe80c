//! Responses to requests that failed: status, headers, and Belljar's own error object.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::ErrorCode as Code;
use belljar_engine::finding::Finding;
use schemars::JsonSchema;
use serde::Serialize;

use super::body::SortedJson;
use super::request_id::RequestId;
use crate::error::Error;
use crate::share_pool::ShareKind;

/// Error response.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Problem {
    /// Reason the request failed.
    pub(crate) error: Reason,
}

/// Reason a request failed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Reason {
    /// Machine-readable code.
    code: Code,
    /// Findings of the policy; only with the code `refused`.
    #[serde(skip_serializing_if = "Option::is_none")]
    findings: Option<Vec<Finding>>,
    /// Description for people.
    message: String,
    /// Request id for finding the error in the server's log.
    request_id: Option<String>,
}

/// Marks a response whose errors stay as they are, because they come from a tenant's program or another
/// protocol.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PassThrough;

/// Renders an error as Belljar's error object.
pub(crate) fn render(error: &Error, id: &RequestId) -> Response {
    (http_status(error.code()), SortedJson(error.to_problem(Some(id.to_string())))).into_response()
}

/// Returns the error object for a response that has already started.
pub(crate) fn error_json(error: &Error) -> String {
    serde_json::to_string(&Problem { error: error.to_reason(None) }).unwrap_or_default()
}

impl Error {
    /// Returns the body of this error.
    fn to_problem(&self, request_id: Option<String>) -> Problem {
        let findings = match self {
            Self::Engine(engine) => match &**engine {
                belljar_engine::Error::Refused { findings, .. } => Some(findings.clone()),
                _ => None,
            },
            _ => None,
        };
        Problem { error: Reason { findings, ..self.to_reason(request_id) } }
    }

    /// Returns the reason without findings, for a response that has already started.
    pub(crate) fn to_reason(&self, request_id: Option<String>) -> Reason {
        Reason { code: self.code(), findings: None, message: self.message(), request_id }
    }
}

/// Returns the HTTP status of a code.
pub(crate) fn http_status(code: Code) -> StatusCode {
    match code {
        Code::InvalidRequest
        | Code::InvalidLimit
        | Code::UnknownLanguage
        | Code::LanguageUnavailable
        | Code::UnknownProfile
        | Code::Unsupported
        | Code::LayerUnavailable
        | Code::DependencyUnresolvable
        | Code::DependencyBuildFailed
        | Code::BadArchive => StatusCode::UNPROCESSABLE_ENTITY,
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::Forbidden | Code::ForeignOrigin | Code::PermissionDenied | Code::Refused => {
            StatusCode::FORBIDDEN
        }
        Code::Misdirected => StatusCode::MISDIRECTED_REQUEST,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::Conflict
        | Code::PortClosed
        | Code::IdempotencyConflict
        | Code::SandboxPaused
        | Code::DiskFull => StatusCode::CONFLICT,
        Code::SandboxEnded => StatusCode::GONE,
        Code::RangeNotSatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
        Code::PortFailed => StatusCode::BAD_GATEWAY,
        Code::PortTimeout => StatusCode::GATEWAY_TIMEOUT,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
        Code::TooManyRequests | Code::QuotaExceeded | Code::TooManySandboxes => StatusCode::TOO_MANY_REQUESTS,
        Code::SetupFailed
        | Code::SandboxMemoryExhausted
        | Code::Overloaded
        | Code::ShuttingDown
        | Code::StorageUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::StorageFull => StatusCode::INSUFFICIENT_STORAGE,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Produces status and headers only. The middleware has the dialect add the body.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = http_status(self.code()).into_response();
        if let Some(seconds) = self.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(self, Self::Unauthorized) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Self::Range(size) = self
            && let Ok(range) = HeaderValue::try_from(format!("bytes */{size}"))
        {
            response.headers_mut().insert(header::CONTENT_RANGE, range);
        }
        if matches!(self, Self::ShareTaken { kind: ShareKind::Connections, .. }) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(self);
        response
    }
}
