//! Error codes: why a request was refused or could not be served. What a program did is never an error.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The closed list of `code` in `{"error":{"code","message","request_id"}}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "Code")]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
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
    /// A known feature that this provider or version does not support.
    Unsupported,
    /// A required isolation layer is not enforced here.
    LayerUnavailable,
    /// The sandbox could not be set up; nothing ran.
    SetupFailed,
    /// The memory of all sandboxes together ran out, and this one was ended; try again later.
    SandboxMemoryExhausted,
    /// The requested packages do not exist or may not be installed; nothing ran.
    DependencyUnresolvable,
    /// A package could not be built; nothing ran.
    DependencyBuildFailed,
    /// The API key is missing or not valid.
    Unauthorized,
    /// The key lacks the scope for this.
    Forbidden,
    /// A browser sent this request from another site.
    ForeignOrigin,
    /// The request names another host in its `Host` header.
    Misdirected,
    /// No such resource in this tenant.
    NotFound,
    /// The path exists, but not with this method.
    MethodNotAllowed,
    /// The resource already exists, is in use, or has already ended.
    Conflict,
    /// A different request was sent with this `Idempotency-Key`.
    IdempotencyConflict,
    /// The body is too long.
    TooLarge,
    /// The `Content-Type` of the body is not JSON.
    UnsupportedMediaType,
    /// The body did not arrive in time.
    RequestTimeout,
    /// The tenant's queue is full, or it holds its share of connections, streams or memory.
    TooManyRequests,
    /// The tenant's quota for the day, or for concurrent use, is used up.
    QuotaExceeded,
    /// The server is at capacity.
    Overloaded,
    /// The server is shutting down.
    ShuttingDown,
    /// The maximum number of sandboxes is reached.
    TooManySandboxes,
    /// The sandbox has ended.
    SandboxEnded,
    /// The sandbox is paused.
    SandboxPaused,
    /// The user inside the sandbox lacks permission.
    PermissionDenied,
    /// The sandbox's disk is full.
    DiskFull,
    /// The archive is malformed, or contains an entry that is not allowed.
    BadArchive,
    /// The requested range is outside the file.
    RangeNotSatisfiable,
    /// No program listens on that port of the sandbox.
    PortClosed,
    /// The program on that port does not answer in HTTP.
    PortFailed,
    /// The program on that port does not answer in time.
    PortTimeout,
    /// The server has no disk space for results.
    StorageFull,
    /// Results cannot be stored or read.
    StorageUnavailable,
    /// A policy refuses the request.
    Refused,
    /// A bug in the server.
    Internal,
}

impl ErrorCode {
    /// Codes about a run itself, with or without a server. The others are only used by a server.
    pub const RUN: &[Self] = &[
        Self::InvalidRequest,
        Self::InvalidLimit,
        Self::UnknownLanguage,
        Self::LanguageUnavailable,
        Self::UnknownProfile,
        Self::Unsupported,
        Self::LayerUnavailable,
        Self::SetupFailed,
        Self::SandboxMemoryExhausted,
        Self::Refused,
        Self::DependencyUnresolvable,
        Self::DependencyBuildFailed,
    ];

    /// Returns the code as it appears in JSON.
    pub fn as_word(self) -> String {
        serde_json::to_value(self).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
    }
}
