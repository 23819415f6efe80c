//! What a caller of the host's half can hear.

use std::io;

use thiserror::Error;

use crate::protocol::{Failure, FailureKind, FrameError, Kind};

/// Why a request has no answer.
#[derive(Debug, Clone, Error)]
pub enum GuestError {
    /// The guest did not or could not.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The guest is gone, and with it the sandbox.
    #[error("the sandbox is gone: {0}")]
    Gone(Loss),
    /// The request does not fit into a frame.
    #[error("the request is too large")]
    RequestTooLarge,
}

/// How a guest was lost.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Loss {
    /// It ended, or its host let go of it.
    #[error("it ended")]
    Ended,
    /// The line broke.
    #[error("its line broke: {0}")]
    Line(io::ErrorKind),
    /// It broke the rules, and is no longer listened to.
    #[error("it broke the protocol: {0}")]
    Violation(Violation),
}

/// What a guest may not do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    /// Something else than a greeting came first.
    #[error("it did not greet")]
    NoHello,
    /// It speaks another version.
    #[error("it speaks version {0}")]
    Version(u32),
    /// A frame longer than any may be.
    #[error("a frame of {0} bytes")]
    TooLong(u32),
    /// A kind of frame that there is not.
    #[error("a frame of the unknown kind {0}")]
    UnknownKind(u8),
    /// A kind of frame that only hosts send, or that has no place here.
    #[error("a {0:?} frame out of place")]
    OutOfPlace(Kind),
    /// A frame of a channel that is not open.
    #[error("a frame of channel {0}, which is not open")]
    UnknownChannel(u32),
    /// More bytes than it had credit for.
    #[error("more than its credit on channel {0}")]
    Overrun(u32),
    /// More credit than there can be.
    #[error("too much credit on channel {0}")]
    Credit(u32),
    /// A message that cannot be read.
    #[error("a malformed {0:?} frame")]
    Malformed(Kind),
    /// An answer to another question.
    #[error("an answer that does not fit the question")]
    WrongAnswer,
}

impl GuestError {
    /// The kind of failure, where the guest told one.
    pub fn kind(&self) -> Option<FailureKind> {
        match self {
            Self::Failed(failure) => Some(failure.kind),
            _ => None,
        }
    }

    /// The error that an [`io::Error`] of this crate's streams carries.
    pub fn of_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<GuestError> for io::Error {
    fn from(error: GuestError) -> Self {
        let kind = match &error {
            GuestError::Gone(_) => io::ErrorKind::BrokenPipe,
            GuestError::RequestTooLarge => io::ErrorKind::InvalidInput,
            GuestError::Failed(failure) => failure.kind.to_io(),
        };
        Self::new(kind, error)
    }
}

impl From<FrameError> for Loss {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::TooLong(len) => Self::Violation(Violation::TooLong(len)),
            FrameError::UnknownKind(kind) => Self::Violation(Violation::UnknownKind(kind)),
            FrameError::Io(error) => Self::Line(error.kind()),
        }
    }
}
