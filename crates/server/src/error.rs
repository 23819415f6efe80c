//! Errors of requests: their codes and messages. `http/problem.rs` turns them into responses.
//!
//! Messages are for the caller: they contain no path of this machine, and no message of the operating system
//! or the database. Those go to the log, together with the request id.

use std::sync::Arc;

pub use belljar_engine::ErrorCode as Code;
use belljar_engine::host_storage::HostStorageError;
use belljar_engine::sandbox_handle::{FailureKind, SandboxError};
use belljar_store::{Error as Store, Scope};
use thiserror::Error as ThisError;

use crate::share_pool::ShareKind;

/// The reason a request was not served.
#[derive(Debug, Clone, ThisError)]
pub enum Error {
    /// The engine refused the request or failed.
    #[error(transparent)]
    Engine(Arc<belljar_engine::Error>),
    /// The store refused the request or failed.
    #[error(transparent)]
    Store(Arc<Store>),
    /// An operation in a sandbox failed.
    #[error(transparent)]
    Sandbox(Arc<SandboxError>),
    /// A volume or snapshot could not be stored or read.
    #[error(transparent)]
    HostStorage(Arc<HostStorageError>),
    /// An error whose cause this caller may see: an administrator.
    #[error("{cause}")]
    WithCause {
        /// The error.
        error: Arc<Error>,
        /// Its cause, without secrets.
        cause: String,
    },
    /// A part of the request is not valid.
    #[error("{field}: {message}")]
    Invalid {
        /// The part of the request.
        field: &'static str,
        /// The problem and how to fix it.
        message: String,
    },
    /// The API key is missing or not valid.
    #[error("a valid API key is needed: send 'Authorization: Bearer KEY'")]
    Unauthorized,
    /// The key became invalid while the request was served.
    #[error(
        "the API key is no longer valid: it was revoked or has expired, or its tenant was disabled or deleted"
    )]
    KeyNoLongerValid,
    /// The key lacks a scope.
    #[error("this key does not have the scope '{0}'")]
    Forbidden(Scope),
    /// A browser sent this request from another site.
    #[error("requests from web pages of other sites are refused; allow an origin with 'origins' in [server]")]
    ForeignOrigin,
    /// The `Host` header names another host.
    #[error("this server does not answer to that host name; use 127.0.0.1 or localhost")]
    Misdirected,
    /// No such resource in this tenant.
    #[error("no such {0}")]
    NotFound(&'static str),
    /// The path exists, but not with this method.
    #[error("this method is not supported here")]
    MethodNotAllowed,
    /// The execution has already ended.
    #[error("the execution has already ended")]
    Ended,
    /// The tenant of callers without a key in the database cannot be removed.
    #[error("this is the server's own tenant, which cannot be removed; disable it instead")]
    DefaultTenant,
    /// The maximum number of sandboxes is reached.
    #[error("Maximum number of sandboxes ({0}) reached")]
    SandboxesFull(usize),
    /// The tenant holds its fair share of a shared resource.
    #[error("this tenant has reached its share of {} ({most}); {}", kind.noun(), kind.advice())]
    ShareTaken {
        /// The resource.
        kind: ShareKind,
        /// The tenant's current maximum.
        most: u64,
    },
    /// The tenant's memory quota is used up.
    #[error("this tenant's memory quota is in use; end a sandbox, or ask for less memory")]
    MemoryQuotaUsedUp,
    /// The sandbox has ended.
    #[error("the sandbox has ended ({0}); open another")]
    SandboxEnded(String),
    /// The requested range is outside the file.
    #[error("the range is outside the file, which has {0} bytes")]
    Range(u64),
    /// The program on that port does not answer in HTTP.
    #[error("the program on that port of the sandbox sent a response that cannot be forwarded: {0}")]
    PortFailed(&'static str),
    /// The program on that port does not answer in time.
    #[error("the program on that port of the sandbox did not answer in time")]
    PortTimeout,
    /// Another snapshot is being created.
    #[error("a snapshot is already being created; try again when it is complete")]
    SnapshotInProgress,
    /// The sandbox did not send its files in time.
    #[error(
        "creating the snapshot took too long; try again when the sandbox is less busy, or with fewer files"
    )]
    SnapshotTooSlow,
    /// A different request was sent with this key.
    #[error("a different request was sent with this Idempotency-Key")]
    IdempotencyConflict,
    /// The body is too long.
    #[error("the body is longer than {0}; send less input")]
    TooLarge(String),
    /// The `Content-Type` of the body is not JSON.
    #[error(
        "send JSON, with 'Content-Type: application/json' ('application/x-ndjson' for a batch, \
         'application/octet-stream' for raw bytes)"
    )]
    MediaType,
    /// The body did not arrive in time.
    #[error("the body did not arrive in time")]
    SlowBody,
    /// The tenant's queue is full.
    #[error("too many executions of this tenant are queued; try again later")]
    QueueFull,
    /// Too many requests of this tenant wait for their code to be checked.
    #[error("too many requests of this tenant are queued for a code check; nothing ran, try again later")]
    CheckQueueFull,
    /// Too many code checks of this tenant timed out and are still running.
    #[error(
        "earlier code checks of this tenant still run; nothing ran, try again later or with simpler code"
    )]
    ChecksStuck,
    /// The code check took too long.
    #[error("checking this code took too long; nothing ran, send smaller or simpler code")]
    CheckTimedOut,
    /// The tenant's CPU quota for the day is used up.
    #[error("this tenant's CPU time for today is used up; the quota resets at midnight UTC")]
    CpuQuotaUsedUp {
        /// Seconds until the quota resets.
        retry_after: u64,
    },
    /// The server is at capacity.
    #[error("the server is at capacity; try again later")]
    Overloaded,
    /// The tenant has the maximum number of MCP sessions.
    #[error("the maximum of {0} MCP sessions is open; end one with DELETE, or wait until one expires")]
    TooManySessions(usize),
    /// The server is shutting down.
    #[error("the server is shutting down; try again later")]
    ShuttingDown,
    /// A bug in the server: a task that should answer is gone.
    #[error("internal error; see the server log")]
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

impl From<HostStorageError> for Error {
    fn from(error: HostStorageError) -> Self {
        match error {
            // An error of the sandbox keeps its own code.
            HostStorageError::Source(error) => match error.downcast::<SandboxError>() {
                Ok(error) => error.into(),
                Err(error) => Self::HostStorage(Arc::new(HostStorageError::Source(error))),
            },
            error => Self::HostStorage(Arc::new(error)),
        }
    }
}

impl From<SandboxError> for Error {
    fn from(error: SandboxError) -> Self {
        match error {
            // An error of the provider keeps its own code.
            SandboxError::Provider(error) => belljar_engine::Error::from(error).into(),
            SandboxError::Packages(error) => belljar_engine::Error::from(error).into(),
            SandboxError::Gone(why) => Self::SandboxEnded(why),
            SandboxError::Source(_) => Self::SlowBody,
            error => Self::Sandbox(Arc::new(error)),
        }
    }
}

impl Error {
    /// Returns the machine-readable code of this error.
    pub fn code(&self) -> Code {
        match self {
            Self::Engine(error) => error.code(),
            Self::Store(error) => store_code(error),
            Self::Sandbox(error) => sandbox_code(error),
            Self::HostStorage(error) => host_storage_code(error),
            Self::WithCause { error, .. } => error.code(),
            Self::Invalid { .. } => Code::InvalidRequest,
            Self::Unauthorized | Self::KeyNoLongerValid => Code::Unauthorized,
            Self::Forbidden(_) => Code::Forbidden,
            Self::ForeignOrigin => Code::ForeignOrigin,
            Self::Misdirected => Code::Misdirected,
            Self::NotFound(_) => Code::NotFound,
            Self::MethodNotAllowed => Code::MethodNotAllowed,
            Self::Ended | Self::DefaultTenant | Self::SnapshotInProgress => Code::Conflict,
            Self::SnapshotTooSlow => Code::RequestTimeout,
            Self::SandboxesFull(_) => Code::TooManySandboxes,
            Self::MemoryQuotaUsedUp => Code::QuotaExceeded,
            Self::SandboxEnded(_) => Code::SandboxEnded,
            Self::Range(_) => Code::RangeNotSatisfiable,
            Self::PortFailed(_) => Code::PortFailed,
            Self::PortTimeout => Code::PortTimeout,
            Self::IdempotencyConflict => Code::IdempotencyConflict,
            Self::TooLarge(_) => Code::TooLarge,
            Self::MediaType => Code::UnsupportedMediaType,
            Self::SlowBody => Code::RequestTimeout,
            Self::QueueFull | Self::CheckQueueFull | Self::ChecksStuck => Code::TooManyRequests,
            Self::CpuQuotaUsedUp { .. } | Self::TooManySessions(_) => Code::QuotaExceeded,
            Self::ShareTaken { kind: ShareKind::Sandboxes, .. } => Code::TooManySandboxes,
            Self::ShareTaken { .. } => Code::TooManyRequests,
            Self::Overloaded | Self::CheckTimedOut => Code::Overloaded,
            Self::ShuttingDown => Code::ShuttingDown,
            Self::Internal => Code::Internal,
        }
    }

    /// Returns the message for the caller.
    pub(crate) fn message(&self) -> String {
        match self.code() {
            _ if matches!(self, Self::WithCause { .. }) => self.to_string(),
            Code::SetupFailed if self.is_package_error() => {
                "dependencies: cannot be installed now; try again later, or run without them".to_owned()
            }
            Code::SetupFailed => "the sandbox could not be set up; nothing ran. Try again later, or tell an \
                                  administrator the request id: the server's log has the cause"
                .to_owned(),
            Code::LayerUnavailable => "require: a required layer is not enforced here".to_owned(),
            Code::StorageFull => "no disk space is left for results; try again later".to_owned(),
            Code::StorageUnavailable => "results cannot be stored or read now; try again later".to_owned(),
            _ => self.to_string(),
        }
    }

    /// Adds the cause for an administrator, if the message for tenants hides it.
    pub(crate) fn with_cause_for(self, caller_is_admin: bool, mask: impl Fn(&str) -> String) -> Self {
        let hides_cause = matches!(self.code(), Code::SetupFailed | Code::LayerUnavailable)
            && !matches!(self, Self::WithCause { .. });
        if !caller_is_admin || !hides_cause {
            return self;
        }
        Self::WithCause { cause: mask(&self.to_string()), error: Arc::new(self) }
    }

    fn is_package_error(&self) -> bool {
        matches!(self, Self::Engine(error) if matches!(**error, belljar_engine::Error::Packages(_)))
    }

    /// Returns after how many seconds the request may be sent again, if a retry can help.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        match self {
            Self::CpuQuotaUsedUp { retry_after } => Some(*retry_after),
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

fn sandbox_code(error: &SandboxError) -> Code {
    match error {
        SandboxError::Failed(failure) => failure_code(failure.kind),
        SandboxError::Paused => Code::SandboxPaused,
        SandboxError::Halted(_) => Code::DiskFull,
        SandboxError::Gone(_) => Code::SandboxEnded,
        SandboxError::Provider(_) | SandboxError::Packages(_) => Code::SetupFailed,
        SandboxError::Source(_) => Code::RequestTimeout,
    }
}

fn host_storage_code(error: &HostStorageError) -> Code {
    match error {
        HostStorageError::TooLarge(_) => Code::QuotaExceeded,
        HostStorageError::NoSpace => Code::StorageFull,
        HostStorageError::Missing
        | HostStorageError::Exists
        | HostStorageError::Name(_)
        | HostStorageError::Source(_)
        | HostStorageError::Changed(_)
        | HostStorageError::Io { .. } => Code::StorageUnavailable,
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
        Store::Exists(_) | Store::InUse(_) | Store::BeingDeleted(_) | Store::Unfinished(_) => Code::Conflict,
        Store::Quota { .. } => Code::QuotaExceeded,
        Store::Invalid { .. } | Store::TooLarge { .. } | Store::WrongSealingKey => Code::InvalidRequest,
        Store::QueueFull | Store::TooSlow | Store::Busy | Store::BackupRunning => Code::Overloaded,
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
