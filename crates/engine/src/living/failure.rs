//! Why a request came to nothing, by kind: what the sandbox answers, never what went wrong with the line.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The closed list of kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// No such file, folder, program or process.
    NotFound,
    /// The sandbox user may not.
    Denied,
    /// Something on the way is no folder.
    NotADirectory,
    /// A folder where a file is needed.
    IsADirectory,
    /// A device, pipe or socket where a file is needed.
    NotAFile,
    /// Something is there already.
    Exists,
    /// The folder is not empty.
    NotEmpty,
    /// The disk is full.
    NoSpace,
    /// Beyond a bound of size or number.
    TooLarge,
    /// The request makes no sense.
    Invalid,
    /// The archive is malformed, or tries something that archives must not.
    BadArchive,
    /// Source and target are on different file systems.
    OtherFileSystem,
    /// As many as there may be, at present.
    Busy,
    /// It has ended, or its input is closed.
    Ended,
    /// Nobody listens on that port.
    Refused,
    /// The caller went away.
    Cancelled,
    /// What the kernel says besides.
    Io,
}

impl FailureKind {
    /// The nearest kind that the standard library knows.
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

/// Why a request came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Error)]
#[error("{subject}: {message}")]
pub struct Failure {
    /// The kind.
    pub kind: FailureKind,
    /// What it is about: the path as the caller spelled it, a program, `process 7`, `port 80`.
    pub subject: String,
    /// One line for a person.
    pub message: String,
}

/// Too many open files, of all and of one process: numbers that are the same on every system.
const NFILE: i32 = 23;
const MFILE: i32 = 24;

/// Texts from the guest are cut to this; an honest guest sends none that long.
const MAX_TEXT: usize = 8 << 10;

impl Failure {
    /// A failure.
    pub fn new(kind: FailureKind, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, subject: subject.into(), message: message.into() }
    }

    /// What the kernel said about a subject.
    pub fn of_io(error: &std::io::Error, subject: impl Into<String>) -> Self {
        let kind = match error.raw_os_error() {
            Some(NFILE | MFILE) => FailureKind::Busy,
            _ => kind_of(error.kind()),
        };
        let message = match kind {
            FailureKind::NotFound => "no such file or folder".to_owned(),
            FailureKind::Denied => "permission denied".to_owned(),
            FailureKind::NotADirectory => "not a folder".to_owned(),
            FailureKind::IsADirectory => "is a folder".to_owned(),
            FailureKind::Exists => "exists already".to_owned(),
            FailureKind::NotEmpty => "the folder is not empty".to_owned(),
            FailureKind::NoSpace => "no space left".to_owned(),
            FailureKind::OtherFileSystem => "source and target are on different file systems".to_owned(),
            _ => error.to_string(),
        };
        Self::new(kind, subject, message)
    }

    /// The same with texts of a bounded length.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        for text in [&mut self.subject, &mut self.message] {
            if text.len() > MAX_TEXT {
                text.truncate(text.floor_char_boundary(MAX_TEXT));
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
