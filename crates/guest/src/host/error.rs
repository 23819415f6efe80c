//! Errors of requests to a guest.

use std::io;

use belljar_engine::sandbox_handle::SandboxError;
use thiserror::Error;

use crate::protocol::{Failure, FailureKind, FrameError, FrameKind};

/// Why a request failed.
#[derive(Debug, Clone, Error)]
pub enum GuestError {
    /// The guest refused or failed the request.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The guest is gone, and the sandbox with it.
    #[error("the sandbox is gone: {0}")]
    Gone(DisconnectReason),
    /// The request does not fit in a frame.
    #[error("the request is too large")]
    RequestTooLarge,
}

/// Why a guest is gone.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DisconnectReason {
    /// The guest exited, or closed the connection.
    #[error("it ended")]
    Ended,
    /// The connection broke.
    #[error("its connection broke: {0}")]
    Line(io::ErrorKind),
    /// The guest violated the protocol and was disconnected.
    #[error("it violated the protocol: {0}")]
    Violation(Violation),
}

/// A violation of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    /// The first frame was not a hello.
    #[error("no hello")]
    NoHello,
    /// The guest has another protocol version.
    #[error("unsupported version {0}")]
    Version(u32),
    /// A frame with an overlong body.
    #[error("frame of {0} bytes is too long")]
    TooLong(u32),
    /// An unknown kind of frame.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A frame that only hosts send, or that is not expected here.
    #[error("unexpected {0:?} frame")]
    OutOfPlace(FrameKind),
    /// A frame for a channel that is not open.
    #[error("frame for channel {0}, which is not open")]
    UnknownChannel(u32),
    /// More bytes than granted.
    #[error("credit exceeded on channel {0}")]
    Overrun(u32),
    /// More credit than the window.
    #[error("too much credit on channel {0}")]
    Credit(u32),
    /// A message that cannot be decoded.
    #[error("malformed {0:?} frame")]
    Malformed(FrameKind),
    /// An answer to a different request.
    #[error("the answer does not match the request")]
    WrongAnswer,
}

impl GuestError {
    /// Returns the kind of failure that the guest reported.
    pub fn kind(&self) -> Option<FailureKind> {
        match self {
            Self::Failed(failure) => Some(failure.kind),
            _ => None,
        }
    }

    /// Returns the error inside an [`io::Error`] of this crate's streams.
    pub fn from_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// Converts without finding out why the sandbox is gone.
impl From<GuestError> for SandboxError {
    fn from(error: GuestError) -> Self {
        match error {
            GuestError::Failed(failure) => Self::Failed(failure),
            GuestError::Gone(reason) => Self::Gone(reason.to_string()),
            GuestError::RequestTooLarge => {
                Self::Failed(Failure::new(FailureKind::TooLarge, "request", "too large"))
            }
        }
    }
}

impl From<GuestError> for io::Error {
    fn from(error: GuestError) -> Self {
        Self::new(SandboxError::from(error.clone()).io_kind(), error)
    }
}

impl From<FrameError> for DisconnectReason {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::TooLong(len) => Self::Violation(Violation::TooLong(len)),
            FrameError::UnknownKind(kind) => Self::Violation(Violation::UnknownKind(kind)),
            FrameError::Io(error) => Self::Line(error.kind()),
        }
    }
}
