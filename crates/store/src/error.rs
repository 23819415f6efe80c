//! Errors of the store, and who can fix them.

use std::fmt;
use std::path::PathBuf;

use belljar_engine::Fault;
use rusqlite::ErrorCode;
use rusqlite::ffi::SQLITE_CONSTRAINT_FOREIGNKEY;
use thiserror::Error as ThisError;

/// Kinds of stored objects that errors name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
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

impl fmt::Display for ObjectKind {
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

/// Why an operation of the store failed.
#[derive(Debug, ThisError)]
pub enum Error {
    /// Another process uses this database.
    #[error(
        "{}: another belljar process uses this data folder; stop it, or choose another --data-dir",
        .path.display()
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The database cannot be opened.
    #[error("{}: cannot be opened: {reason}", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The file belongs to another program.
    #[error("{}: not a belljar database; move the file away", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A newer version wrote the database.
    #[error("{}: was written by a newer version of belljar; use that version", .path.display())]
    TooNew {
        /// The file.
        path: PathBuf,
    },
    /// The object does not exist, or belongs to another tenant.
    #[error("no such {0}")]
    NotFound(ObjectKind),
    /// An object of this name exists.
    #[error("a {0} with this name already exists")]
    Exists(ObjectKind),
    /// Other objects still refer to this one.
    #[error("the {0} is in use; remove everything that belongs to it first")]
    InUse(ObjectKind),
    /// The object is being deleted.
    #[error("the {0} is being deleted")]
    BeingDeleted(ObjectKind),
    /// The end of the object is not recorded yet.
    #[error("the end of the {0} is not recorded yet; try again later")]
    Unfinished(ObjectKind),
    /// A value is not valid.
    #[error("{field}: {message}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The problem and how to fix it.
        message: String,
    },
    /// A value exceeds its size limit.
    #[error("{field}: {bytes} bytes exceed the limit of {limit} bytes")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// Size of the value.
        bytes: usize,
        /// Maximum size of the field.
        limit: usize,
    },
    /// The secrets were encrypted with another key.
    #[error("the secrets were sealed with another key; start the server with that key, or set them again")]
    WrongSealingKey,
    /// The tenant's disk quota is exceeded.
    #[error(
        "the tenant's disk quota is exceeded: {left} bytes are left; remove a volume or a snapshot, or close a sandbox whose \
         disk is in a file"
    )]
    Quota {
        /// Unused bytes of the quota.
        left: u64,
    },
    /// Too many reads or writes are queued.
    #[error("the database is overloaded: its queue is full; try again later")]
    QueueFull,
    /// A query exceeded its time limit.
    #[error("the database took too long to answer; request less data, or try again later")]
    TooSlow,
    /// Another program holds a lock on the database.
    #[error("the database is locked by another program; try again later")]
    Busy,
    /// A backup is already running.
    #[error("a backup is already running; try again later")]
    BackupRunning,
    /// The disk is full, or the database reached its maximum size.
    #[error("no space left for the database: free space on its disk, or lower the retention limits")]
    NoSpace,
    /// The disk failed.
    #[error("the database cannot be read or written: {0}")]
    Disk(String),
    /// The file is corrupt.
    #[error("the database is damaged ({0}); restore a backup")]
    Damaged(String),
    /// Any other SQLite error; a bug in Belljar.
    #[error("the database reported an error: {0}")]
    Database(#[source] rusqlite::Error),
    /// The system provides no random numbers.
    #[error("the system provides no random numbers: {0}")]
    Random(String),
    /// The store is closed.
    #[error("the database is closed")]
    Closed,
}

impl Error {
    pub(crate) fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { field, message: message.into() }
    }

    /// Returns who can fix the error: the caller, the caller by waiting, or the host's operator.
    pub fn fault(&self) -> Fault {
        match self {
            Self::NotFound(_)
            | Self::Exists(_)
            | Self::InUse(_)
            | Self::BeingDeleted(_)
            | Self::Unfinished(_)
            | Self::Invalid { .. }
            | Self::TooLarge { .. }
            | Self::WrongSealingKey
            | Self::Quota { .. } => Fault::Caller,
            Self::QueueFull | Self::TooSlow | Self::Busy | Self::BackupRunning => Fault::Capacity,
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

/// Maps the error of an insert into a table whose only foreign key is the tenant.
pub(crate) fn map_missing_tenant(error: rusqlite::Error) -> Error {
    match extended_code(&error) {
        Some(SQLITE_CONSTRAINT_FOREIGNKEY) => Error::NotFound(ObjectKind::Tenant),
        _ => error.into(),
    }
}

/// Returns an error if a statement that must change a row changed none.
pub(crate) fn require_changed_row(rows: usize, otherwise: Error) -> Result<(), Error> {
    if rows == 0 { Err(otherwise) } else { Ok(()) }
}

fn extended_code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}
