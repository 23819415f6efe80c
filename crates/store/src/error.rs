//! What the store failed to do, and whose move it is.

use std::fmt;
use std::path::PathBuf;

use belljar_engine::Fault;
use rusqlite::ErrorCode;
use rusqlite::ffi::{SQLITE_CONSTRAINT_FOREIGNKEY, SQLITE_CONSTRAINT_TRIGGER};
use thiserror::Error as ThisError;

/// What there are many of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A tenant.
    Tenant,
    /// An API key.
    Key,
    /// A profile.
    Profile,
    /// An execution.
    Execution,
    /// A sandbox.
    Sandbox,
    /// A volume.
    Volume,
    /// A snapshot.
    Snapshot,
    /// A file beside the database.
    File,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tenant => "tenant",
            Self::Key => "key",
            Self::Profile => "profile",
            Self::Execution => "execution",
            Self::Sandbox => "sandbox",
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
            Self::File => "file",
        })
    }
}

/// Why something was not stored or not found.
#[derive(Debug, ThisError)]
pub enum Error {
    /// Another process has this database.
    #[error(
        "{}: another belljar uses this data folder; stop it, or give this one another --data-dir",
        .path.display()
    )]
    Locked {
        /// The lock.
        path: PathBuf,
    },
    /// The database cannot be opened.
    #[error("{}: cannot be opened: {reason}", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The file is somebody else's.
    #[error("{}: is no database of belljar; move it away", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A newer belljar wrote it.
    #[error("{}: was written by a newer belljar; use that one", .path.display())]
    TooNew {
        /// The file.
        path: PathBuf,
    },
    /// There is none, or it is another tenant's.
    #[error("no such {0}")]
    NotFound(Kind),
    /// There is one already.
    #[error("there is a {0} of this name already")]
    Exists(Kind),
    /// Something still belongs to it.
    #[error("the {0} is in use: remove what belongs to it first")]
    InUse(Kind),
    /// A value that cannot be stored as it is.
    #[error("{field}: {message}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong and what to do.
        message: String,
    },
    /// More than is kept of one thing.
    #[error("{field}: {bytes} bytes are more than the {limit} that are stored")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// How much it is.
        bytes: usize,
        /// How much it may be.
        limit: usize,
    },
    /// Secrets that were sealed with a key that is not this one.
    #[error("the secrets were sealed with another key; start with that one, or set them again")]
    OtherKey,
    /// More than the tenant may have.
    #[error("more than this tenant's disk quota: {left} bytes are left of it; remove a volume or snapshot")]
    Quota {
        /// What it may still have.
        left: u64,
    },
    /// More writes or reads wait than may.
    #[error("the database has too much to do: its queue is full; try again later")]
    QueueFull,
    /// One question took too long.
    #[error("the database took too long to answer; ask for less, or later")]
    TooSlow,
    /// Somebody else has the database for long.
    #[error("the database is locked by another program; try again later")]
    Busy,
    /// One backup at a time.
    #[error("a backup is under way; try again later")]
    BackingUp,
    /// No room on the disk, or none under the bound of the database.
    #[error("no room for the database: make room on its disk, or let less be kept")]
    NoSpace,
    /// The disk refuses.
    #[error("the database cannot be read or written: {0}")]
    Disk(String),
    /// The file is broken.
    #[error("the database is damaged ({0}); restore a backup")]
    Damaged(String),
    /// Anything else that SQLite says; a mistake of ours.
    #[error("the database refused: {0}")]
    Database(#[source] rusqlite::Error),
    /// No random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
    /// The store is closed.
    #[error("the database is closed")]
    Closed,
}

impl Error {
    pub(crate) fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { field, message: message.into() }
    }

    /// Whose move it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::NotFound(_)
            | Self::Exists(_)
            | Self::InUse(_)
            | Self::Invalid { .. }
            | Self::TooLarge { .. }
            | Self::OtherKey
            | Self::Quota { .. } => Fault::Caller,
            Self::QueueFull | Self::TooSlow | Self::Busy | Self::BackingUp => Fault::Capacity,
            Self::Locked { .. }
            | Self::Open { .. }
            | Self::Foreign { .. }
            | Self::TooNew { .. }
            | Self::NoSpace
            | Self::Disk(_)
            | Self::Damaged(_)
            | Self::Database(_)
            | Self::Random(_)
            | Self::Closed => Fault::Host,
        }
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::NoSpace,
            Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::SystemIoFailure) => {
                Self::Disk(error.to_string())
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(error.to_string()),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            Some(ErrorCode::OperationInterrupted) => Self::TooSlow,
            _ => Self::Database(error),
        }
    }
}

/// For an insert into a table whose only reference is its tenant.
pub(crate) fn owner_missing(error: rusqlite::Error) -> Error {
    match extended_code(&error) {
        Some(SQLITE_CONSTRAINT_FOREIGNKEY) => Error::NotFound(Kind::Tenant),
        _ => error.into(),
    }
}

/// For a delete of something that others refer to.
pub(crate) fn still_referred_to(kind: Kind) -> impl Fn(rusqlite::Error) -> Error {
    move |error| match extended_code(&error) {
        Some(SQLITE_CONSTRAINT_FOREIGNKEY | SQLITE_CONSTRAINT_TRIGGER) => Error::InUse(kind),
        _ => error.into(),
    }
}

/// For a statement that has to change a row.
pub(crate) fn changed(rows: usize, otherwise: Error) -> Result<(), Error> {
    if rows == 0 { Err(otherwise) } else { Ok(()) }
}

fn extended_code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}
