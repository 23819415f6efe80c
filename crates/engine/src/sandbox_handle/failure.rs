//! Failures that the sandbox reports for a request, by kind. Connection errors are not among them.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Kinds of failures; a closed list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// The file, folder, program or process does not exist.
    NotFound,
    /// The sandbox user lacks permission.
    Denied,
    /// A component of the path is not a folder.
    NotADirectory,
    /// The path is a folder, but a file is needed.
    IsADirectory,
    /// The path is a device, pipe or socket, but a file is needed.
    NotAFile,
    /// The target already exists.
    Exists,
    /// The folder is not empty.
    NotEmpty,
    /// The disk is full.
    NoSpace,
    /// A bound on size or number is exceeded.
    TooLarge,
    /// The request is invalid.
    Invalid,
    /// The archive is malformed, or contains a forbidden entry.
    BadArchive,
    /// Source and target are on different file systems.
    OtherFileSystem,
    /// A bound on concurrent use is reached; retry later.
    Busy,
    /// The process has ended, or its input is closed.
    Ended,
    /// No process listens on the port.
    Refused,
    /// The caller disconnected.
    Cancelled,
    /// Another error of the kernel.
    Io,
}

impl FailureKind {
    /// Returns the closest [`std::io::ErrorKind`].
    pub fn to_io(self) -> std::io::ErrorKind {
        use std::io::ErrorKind;
        match self {
            Self::NotFound => ErrorKind::NotFound,
            Self::Denied => ErrorKind::PermissionDenied,
            Self::NoSpace => ErrorKind::StorageFull,
            Self::Refused => ErrorKind::ConnectionRefused,
            _ => ErrorKind::Other,
        }
    }
}

/// A failure that the sandbox reports for a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Error)]
#[error("{subject}: {message}")]
pub struct Failure {
    /// The kind.
    pub kind: FailureKind,
    /// The subject: the path as the caller spelled it, a program, `process 7`, `port 80`.
    pub subject: String,
    /// A one-line message for people.
    pub message: String,
}

/// `ENFILE` and `EMFILE`, too many open files system-wide and per process: the numbers are the same on every
/// system.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// Maximum length of texts from the guest, in bytes; longer ones are truncated. An honest guest sends none
/// that long.
const MAX_TEXT_BYTES: usize = 8 << 10;

impl Failure {
    /// Creates a failure.
    pub fn new(kind: FailureKind, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, subject: subject.into(), message: message.into() }
    }

    /// Converts an error of the kernel about a subject.
    pub fn from_io(error: &std::io::Error, subject: impl Into<String>) -> Self {
        let kind = match error.raw_os_error() {
            Some(ENFILE | EMFILE) => FailureKind::Busy,
            _ => kind_of(error.kind()),
        };
        let message = match kind {
            FailureKind::NotFound => "no such file or folder".to_owned(),
            FailureKind::Denied => "permission denied".to_owned(),
            FailureKind::NotADirectory => "not a folder".to_owned(),
            FailureKind::IsADirectory => "is a folder".to_owned(),
            FailureKind::Exists => "already exists".to_owned(),
            FailureKind::NotEmpty => "the folder is not empty".to_owned(),
            FailureKind::NoSpace => "no space left".to_owned(),
            FailureKind::OtherFileSystem => "source and target are on different file systems".to_owned(),
            _ => error.to_string(),
        };
        Self::new(kind, subject, message)
    }

    /// Truncates the texts to a bounded length.
    #[must_use]
    pub fn truncated(mut self) -> Self {
        for text in [&mut self.subject, &mut self.message] {
            if text.len() > MAX_TEXT_BYTES {
                text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
            }
        }
        self
    }
}

fn kind_of(kind: std::io::ErrorKind) -> FailureKind {
    use std::io::ErrorKind;
    match kind {
        ErrorKind::NotFound => FailureKind::NotFound,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => FailureKind::Denied,
        ErrorKind::NotADirectory => FailureKind::NotADirectory,
        ErrorKind::IsADirectory => FailureKind::IsADirectory,
        ErrorKind::AlreadyExists => FailureKind::Exists,
        ErrorKind::DirectoryNotEmpty => FailureKind::NotEmpty,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => FailureKind::NoSpace,
        ErrorKind::FileTooLarge | ErrorKind::ArgumentListTooLong => FailureKind::TooLarge,
        ErrorKind::InvalidInput | ErrorKind::InvalidFilename => FailureKind::Invalid,
        ErrorKind::CrossesDevices => FailureKind::OtherFileSystem,
        ErrorKind::ConnectionRefused => FailureKind::Refused,
        ErrorKind::BrokenPipe => FailureKind::Ended,
        ErrorKind::WouldBlock | ErrorKind::OutOfMemory => FailureKind::Busy,
        _ => FailureKind::Io,
    }
}
