//! Every way in which a request can be refused or fail, and what each looks like outside.
//!
//! The text of an error is for the caller: no path of this machine, no message of the system or of the database is in
//! it. Those go to the log, beside the request's id.

use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::ErrorCode as Engine;
use belljar_engine::living::{FailureKind, LivingError};
use belljar_engine::places::PlacesError;
use belljar_store::{Error as Store, Scope};
use serde::Serialize;
use serde_json::{Value, json};
use thiserror::Error as ThisError;
use utoipa::ToSchema;

use crate::pool::ShareKind;

/// The closed list of `code` in `{"error":{"code","message","request_id"}}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// A field is missing, malformed or contradicts another.
    InvalidRequest,
    /// A limit is zero, negative or above the ceiling.
    InvalidLimit,
    /// No such language.
    UnknownLanguage,
    /// A known language whose runtime the image does not have.
    LanguageUnavailable,
    /// No such profile.
    UnknownProfile,
    /// Known, but not possible with this provider or version.
    Unsupported,
    /// A demanded layer is not enforced here.
    LayerUnavailable,
    /// The sandbox could not be set up; nothing ran.
    SetupFailed,
    /// All sandboxes together used up their memory, and this one was ended for it; try again later.
    SandboxMemoryExhausted,
    /// There is no such set of packages, or none that may be installed; nothing ran.
    DependencyUnresolvable,
    /// A package could not be built; nothing ran.
    DependencyBuildFailed,
    /// No key, or none that opens anything.
    Unauthorized,
    /// The key does not open this.
    Forbidden,
    /// A browser sent this from another site.
    ForeignOrigin,
    /// The request is for another host name.
    Misdirected,
    /// There is none, or it is another tenant's.
    NotFound,
    /// There is something here, but not by this method.
    MethodNotAllowed,
    /// It is there already, in use, or has ended already.
    Conflict,
    /// Another request came with this `Idempotency-Key`.
    IdempotencyConflict,
    /// The body is too long.
    TooLarge,
    /// The body is no JSON by its `Content-Type`.
    UnsupportedMediaType,
    /// The body did not arrive in time.
    RequestTimeout,
    /// As many of this tenant's executions wait as may, or it holds its share of connections, streams or memory.
    TooManyRequests,
    /// What the tenant may use in a day, or have at one time, is used up.
    QuotaExceeded,
    /// The server has as much to do as it can hold.
    Overloaded,
    /// The server is about to end.
    ShuttingDown,
    /// There are as many sandboxes as there may be.
    TooManySandboxes,
    /// The sandbox has ended.
    SandboxEnded,
    /// The sandbox is paused.
    SandboxPaused,
    /// The sandbox's own user may not do this in it.
    PermissionDenied,
    /// The sandbox's disk is full.
    DiskFull,
    /// The archive is malformed, or tries something that archives must not.
    BadArchive,
    /// The file has no such part.
    RangeNotSatisfiable,
    /// Nobody listens on that port of the sandbox.
    PortClosed,
    /// Whoever listens on that port does not answer in HTTP.
    PortFailed,
    /// Whoever listens on that port does not answer in time.
    PortTimeout,
    /// There is no room for results.
    StorageFull,
    /// Results can be neither kept nor found.
    StorageUnavailable,
    /// A policy does not let it run.
    Refused,
    /// A mistake of ours.
    Internal,
}

/// Why a request was not served.
#[derive(Debug, Clone, ThisError)]
pub enum Error {
    /// The engine refuses the request, or could not do its part.
    #[error(transparent)]
    Engine(Arc<belljar_engine::Error>),
    /// The store refuses, or could not do its part.
    #[error(transparent)]
    Store(Arc<Store>),
    /// A living sandbox did not do what it was asked.
    #[error(transparent)]
    Living(Arc<LivingError>),
    /// What outlives sandboxes could not be kept or found.
    #[error(transparent)]
    Places(Arc<PlacesError>),
    /// A part of the request that cannot be used as it is.
    #[error("{field}: {message}")]
    Invalid {
        /// What part.
        field: &'static str,
        /// What is wrong and what to do.
        message: String,
    },
    /// No key, or none that opens anything.
    #[error("a valid API key is needed: send 'Authorization: Bearer KEY'")]
    Unauthorized,
    /// The key lacks a scope.
    #[error("this key does not have the scope '{0}'")]
    Forbidden(Scope),
    /// A browser sent this from another site.
    #[error("requests from web pages of other sites are refused; origins in [server] lists those that may")]
    ForeignOrigin,
    /// Not our name.
    #[error("this server does not answer to that host name; use 127.0.0.1 or localhost")]
    Misdirected,
    /// There is none, or it is another tenant's.
    #[error("no such {0}")]
    NotFound(&'static str),
    /// There is something here, but not by this method.
    #[error("this method is not possible here")]
    MethodNotAllowed,
    /// It has ended already.
    #[error("the execution has ended already")]
    Ended,
    /// Whoever has no key of the database belongs to it.
    #[error("this is the server's own tenant, which cannot be removed; disable it instead")]
    OwnTenant,
    /// There are as many sandboxes as there may be.
    #[error("Maximum number of sandboxes ({0}) reached")]
    SandboxesFull(usize),
    /// The tenant holds its share of something that all tenants use.
    #[error("this tenant holds its share of {} ({most}); {}", kind.noun(), kind.advice())]
    ShareTaken {
        /// Of what.
        kind: ShareKind,
        /// What it may hold at the moment.
        most: u64,
    },
    /// The tenant's memory is taken.
    #[error("the memory that this tenant may have at one time is taken; end a sandbox, or ask for less")]
    MemoryTaken,
    /// The sandbox has ended.
    #[error("the sandbox has ended; open another")]
    SandboxEnded,
    /// The file has no such part.
    #[error("the file has no such part; it has {0} bytes")]
    Range(u64),
    /// Whoever listens on that port does not answer in HTTP.
    #[error("the program at that port of the sandbox gave no answer that can be passed on: {0}")]
    PortFailed(&'static str),
    /// Whoever listens on that port does not answer in time.
    #[error("the program at that port of the sandbox did not answer in time")]
    PortTimeout,
    /// One at a time.
    #[error("a snapshot is being made; try again when it is there")]
    SnapshotUnderWay,
    /// The sandbox did not give its files in time.
    #[error(
        "making the snapshot took too long; try again when the sandbox has less to do, or with fewer files"
    )]
    SnapshotTooSlow,
    /// Another request came with this key.
    #[error("another request came with this Idempotency-Key")]
    IdempotencyConflict,
    /// The body is too long.
    #[error("the body is longer than {0}; leave out some of its input")]
    TooLarge(String),
    /// The body is no JSON by its `Content-Type`.
    #[error(
        "send JSON, with 'Content-Type: application/json' ('application/x-ndjson' for a batch, \
         'application/octet-stream' for plain bytes)"
    )]
    MediaType,
    /// The body did not arrive in time.
    #[error("the body did not arrive in time")]
    SlowBody,
    /// As many of this tenant's executions wait as may.
    #[error("too many executions of this tenant are waiting already; try again later")]
    QueueFull,
    /// As many of this tenant's requests wait to have their code read as may.
    #[error("too many requests of this tenant wait to have their code checked; nothing ran, try again later")]
    ReadersBusy,
    /// Readings of this tenant's code were abandoned, and have not ended.
    #[error(
        "checking earlier code of this tenant has not ended; nothing ran, try again when it has, or with simpler code"
    )]
    ReadersStuck,
    /// Reading this code took too long.
    #[error("checking this code took too long; nothing ran, make it smaller or simpler")]
    ReadingAbandoned,
    /// What the tenant may use in a day is used up.
    #[error("the processor time of this day is used up; it is fresh again at midnight, UTC")]
    QuotaSpent {
        /// Seconds until then.
        retry_after: u64,
    },
    /// The server has as much to do as it can hold.
    #[error("the server has too much to do; try again later")]
    Overloaded,
    /// The tenant has as many sessions of MCP as it may.
    #[error("{0} sessions are open, and no more may be; end one with DELETE, or wait until one is over")]
    TooManySessions(usize),
    /// The server is about to end.
    #[error("the server is shutting down; try again later")]
    ShuttingDown,
    /// A mistake of ours: what was to answer is gone.
    #[error("an internal error; the log says more")]
    Internal,
}

impl From<belljar_engine::Error> for Error {
    fn from(error: belljar_engine::Error) -> Self {
        Self::Engine(Arc::new(error))
    }
}

impl From<Store> for Error {
    fn from(error: Store) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl From<PlacesError> for Error {
    fn from(error: PlacesError) -> Self {
        match error {
            // What the sandbox says is the same whoever asked it.
            PlacesError::Source(error) => match error.downcast::<LivingError>() {
                Ok(living) => living.into(),
                Err(error) => Self::Places(Arc::new(PlacesError::Source(error))),
            },
            error => Self::Places(Arc::new(error)),
        }
    }
}

impl From<LivingError> for Error {
    fn from(error: LivingError) -> Self {
        match error {
            // What the provider could not do is the same whoever asked for it.
            LivingError::Provider(error) => belljar_engine::Error::from(error).into(),
            // Why it is gone is recorded with its end.
            LivingError::Gone(_) => Self::SandboxEnded,
            LivingError::Source(_) => Self::SlowBody,
            error => Self::Living(Arc::new(error)),
        }
    }
}

impl Error {
    /// The machine-readable name of this error.
    pub fn code(&self) -> Code {
        match self {
            Self::Engine(error) => engine_code(error.code()),
            Self::Store(error) => store_code(error),
            Self::Living(error) => living_code(error),
            Self::Places(error) => places_code(error),
            Self::Invalid { .. } => Code::InvalidRequest,
            Self::Unauthorized => Code::Unauthorized,
            Self::Forbidden(_) => Code::Forbidden,
            Self::ForeignOrigin => Code::ForeignOrigin,
            Self::Misdirected => Code::Misdirected,
            Self::NotFound(_) => Code::NotFound,
            Self::MethodNotAllowed => Code::MethodNotAllowed,
            Self::Ended | Self::OwnTenant | Self::SnapshotUnderWay => Code::Conflict,
            Self::SnapshotTooSlow => Code::RequestTimeout,
            Self::SandboxesFull(_) => Code::TooManySandboxes,
            Self::MemoryTaken => Code::QuotaExceeded,
            Self::SandboxEnded => Code::SandboxEnded,
            Self::Range(_) => Code::RangeNotSatisfiable,
            Self::PortFailed(_) => Code::PortFailed,
            Self::PortTimeout => Code::PortTimeout,
            Self::IdempotencyConflict => Code::IdempotencyConflict,
            Self::TooLarge(_) => Code::TooLarge,
            Self::MediaType => Code::UnsupportedMediaType,
            Self::SlowBody => Code::RequestTimeout,
            Self::QueueFull | Self::ReadersBusy | Self::ReadersStuck => Code::TooManyRequests,
            Self::QuotaSpent { .. } | Self::TooManySessions(_) => Code::QuotaExceeded,
            Self::ShareTaken { kind: ShareKind::Sandboxes, .. } => Code::TooManySandboxes,
            Self::ShareTaken { .. } => Code::TooManyRequests,
            Self::Overloaded | Self::ReadingAbandoned => Code::Overloaded,
            Self::ShuttingDown => Code::ShuttingDown,
            Self::Internal => Code::Internal,
        }
    }

    /// What the caller is told.
    pub(crate) fn message(&self) -> String {
        match self.code() {
            Code::SetupFailed if self.is_about_packages() => {
                "dependencies: they cannot be installed now; try again later, or do without them".to_owned()
            }
            Code::SetupFailed => "the sandbox could not be set up; nothing ran".to_owned(),
            Code::LayerUnavailable => "require: a demanded layer is not enforced here".to_owned(),
            Code::StorageFull => "there is no room for results; try again later".to_owned(),
            Code::StorageUnavailable => {
                "results can be neither kept nor found now; try again later".to_owned()
            }
            _ => self.to_string(),
        }
    }

    /// The body that says it.
    pub(crate) fn object(&self, request_id: Option<&str>) -> Value {
        let mut error = json!({"code": self.code(), "message": self.message(), "request_id": request_id});
        if let Self::Engine(engine) = self
            && let belljar_engine::Error::Refused { findings, .. } = &**engine
        {
            error["findings"] = json!(findings);
        }
        json!({"error": error})
    }

    fn is_about_packages(&self) -> bool {
        matches!(self, Self::Engine(error) if matches!(**error, belljar_engine::Error::Packages(_)))
    }

    fn retry_after(&self) -> Option<u64> {
        match self {
            Self::QuotaSpent { retry_after } => Some(*retry_after),
            _ => match self.code() {
                Code::TooManyRequests | Code::Overloaded => Some(1),
                Code::TooManySandboxes | Code::QuotaExceeded => Some(10),
                Code::ShuttingDown
                | Code::StorageFull
                | Code::StorageUnavailable
                | Code::SandboxMemoryExhausted => Some(5),
                _ => None,
            },
        }
    }
}

fn engine_code(code: Engine) -> Code {
    match code {
        Engine::InvalidRequest => Code::InvalidRequest,
        Engine::InvalidLimit => Code::InvalidLimit,
        Engine::UnknownLanguage => Code::UnknownLanguage,
        Engine::LanguageUnavailable => Code::LanguageUnavailable,
        Engine::UnknownProfile => Code::UnknownProfile,
        Engine::Unsupported => Code::Unsupported,
        Engine::LayerUnavailable => Code::LayerUnavailable,
        Engine::SetupFailed => Code::SetupFailed,
        Engine::SandboxMemoryExhausted => Code::SandboxMemoryExhausted,
        Engine::Refused => Code::Refused,
        Engine::DependencyUnresolvable => Code::DependencyUnresolvable,
        Engine::DependencyBuildFailed => Code::DependencyBuildFailed,
    }
}

fn living_code(error: &LivingError) -> Code {
    match error {
        LivingError::Failed(failure) => failure_code(failure.kind),
        LivingError::Paused => Code::SandboxPaused,
        LivingError::Halted(_) => Code::DiskFull,
        LivingError::Gone(_) => Code::SandboxEnded,
        LivingError::Provider(_) => Code::SetupFailed,
        LivingError::Source(_) => Code::RequestTimeout,
    }
}

fn places_code(error: &PlacesError) -> Code {
    match error {
        PlacesError::TooLarge(_) => Code::QuotaExceeded,
        PlacesError::NoSpace => Code::StorageFull,
        PlacesError::Missing
        | PlacesError::Exists
        | PlacesError::Name(_)
        | PlacesError::Source(_)
        | PlacesError::Changed(_)
        | PlacesError::Io { .. } => Code::StorageUnavailable,
    }
}

fn failure_code(kind: FailureKind) -> Code {
    match kind {
        FailureKind::NotFound => Code::NotFound,
        FailureKind::Denied => Code::PermissionDenied,
        FailureKind::NotADirectory
        | FailureKind::IsADirectory
        | FailureKind::NotAFile
        | FailureKind::Exists
        | FailureKind::NotEmpty
        | FailureKind::OtherFileSystem
        | FailureKind::Ended
        | FailureKind::Io => Code::Conflict,
        FailureKind::NoSpace => Code::DiskFull,
        FailureKind::TooLarge => Code::TooLarge,
        FailureKind::Invalid => Code::InvalidRequest,
        FailureKind::BadArchive => Code::BadArchive,
        FailureKind::Busy => Code::TooManyRequests,
        FailureKind::Refused => Code::PortClosed,
        FailureKind::Cancelled => Code::RequestTimeout,
    }
}

fn store_code(error: &Store) -> Code {
    match error {
        Store::NotFound(_) => Code::NotFound,
        Store::Exists(_) | Store::InUse(_) => Code::Conflict,
        Store::Quota { .. } => Code::QuotaExceeded,
        Store::Invalid { .. } | Store::TooLarge { .. } | Store::OtherKey => Code::InvalidRequest,
        Store::QueueFull | Store::TooSlow | Store::Busy | Store::BackingUp => Code::Overloaded,
        Store::NoSpace => Code::StorageFull,
        Store::Closed => Code::ShuttingDown,
        Store::Locked { .. }
        | Store::Open { .. }
        | Store::Foreign { .. }
        | Store::TooNew { .. }
        | Store::Disk(_)
        | Store::Damaged(_)
        | Store::Database(_)
        | Store::Random(_) => Code::StorageUnavailable,
    }
}

impl Code {
    /// The status line that goes with it.
    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidRequest
            | Self::InvalidLimit
            | Self::UnknownLanguage
            | Self::LanguageUnavailable
            | Self::UnknownProfile
            | Self::Unsupported
            | Self::LayerUnavailable
            | Self::DependencyUnresolvable
            | Self::DependencyBuildFailed
            | Self::BadArchive => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden | Self::ForeignOrigin | Self::PermissionDenied | Self::Refused => {
                StatusCode::FORBIDDEN
            }
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Conflict
            | Self::PortClosed
            | Self::IdempotencyConflict
            | Self::SandboxPaused
            | Self::DiskFull => StatusCode::CONFLICT,
            Self::SandboxEnded => StatusCode::GONE,
            Self::RangeNotSatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
            Self::PortFailed => StatusCode::BAD_GATEWAY,
            Self::PortTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::TooManyRequests | Self::QuotaExceeded | Self::TooManySandboxes => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::SetupFailed
            | Self::SandboxMemoryExhausted
            | Self::Overloaded
            | Self::ShuttingDown
            | Self::StorageUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::StorageFull => StatusCode::INSUFFICIENT_STORAGE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The word, as JSON has it.
    pub fn word(self) -> String {
        serde_json::to_value(self).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

/// The head alone; the body is written at the edge, where the request's id is known.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = self.code().status().into_response();
        if let Some(seconds) = self.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(self, Self::Unauthorized) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Self::Range(size) = self
            && let Ok(place) = HeaderValue::try_from(format!("bytes */{size}"))
        {
            response.headers_mut().insert(header::CONTENT_RANGE, place);
        }
        if matches!(self, Self::ShareTaken { kind: ShareKind::Connections, .. }) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(self);
        response
    }
}
