//! Errors of the layer store, and whose fault they are.

use std::path::{Path, PathBuf};

use belljar_beneath::FolderError;
use belljar_engine::Fault;
use rustix::io::Errno;
use thiserror::Error as ThisError;

use super::manifest::LayerKey;

/// An error of the layer store. Cheap to clone: all callers that wait for the same work get the same error.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum LayerStoreError {
    /// The disk is full.
    #[error("{}: disk full; free some space, or remove layers with 'belljar deps prune'", .path.display())]
    NoSpace {
        /// The path that was written.
        path: PathBuf,
    },
    /// The folder is not writable.
    #[error(
        "{}: not writable; set 'dependencies.folder' to a folder of your own, or make this one writable",
        .path.display()
    )]
    ReadOnly {
        /// The path that was written.
        path: PathBuf,
    },
    /// The folder is writable by others.
    #[error(
        "{}: others can write here and change layers; run chmod go-w on it, or use a folder of your own",
        .path.display()
    )]
    WritableByOthers {
        /// The folder.
        path: PathBuf,
    },
    /// Another error of the disk.
    #[error("cannot {doing} {}: {errno}", .path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// Its path.
        path: PathBuf,
        /// The system's error.
        errno: Errno,
    },
    /// An entry that is not allowed in a layer.
    #[error("'{path}' is not allowed in a layer: {why}")]
    NotAllowed {
        /// Path from the top of the layer, escaped.
        path: String,
        /// The reason.
        why: &'static str,
    },
    /// Exceeds a limit of a layer.
    #[error("layer limit exceeded: too many {what} (at most {limit})")]
    TooLarge {
        /// The limited quantity.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// A layer that differs from what was published.
    #[error("layer {key} is damaged ({why}); it will be rebuilt")]
    Damaged {
        /// The layer's key.
        key: LayerKey,
        /// The damage.
        why: String,
    },
    /// No layer has this key.
    #[error("no layer {0}; 'belljar deps list' shows all layers")]
    NotFound(LayerKey),
    /// An archive that is not an exported layer, or was changed.
    #[error("invalid archive: {0}; check the layer with 'belljar deps verify', and export it again")]
    Archive(String),
    /// Another process holds a lock for too long.
    #[error("{}: locked by another belljar process; try again later", .0.display())]
    LockTimeout(PathBuf),
    /// The system failed to provide random numbers or a thread.
    #[error("system error: {0}")]
    System(String),
}

impl From<FolderError> for LayerStoreError {
    fn from(error: FolderError) -> Self {
        match error {
            FolderError::WritableByOthers(path) => Self::WritableByOthers { path },
            FolderError::LockTimeout(path) => Self::LockTimeout(path),
            FolderError::Io { doing, path, errno } => Self::io(doing, path, errno),
            FolderError::System(why) => Self::System(why),
        }
    }
}

impl LayerStoreError {
    /// Creates an error from an operation, its path and an errno.
    pub(super) fn io(doing: &'static str, path: impl AsRef<Path>, errno: Errno) -> Self {
        let path = path.as_ref().to_owned();
        match errno {
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace { path },
            Errno::ROFS | Errno::ACCESS | Errno::PERM => Self::ReadOnly { path },
            errno => Self::Io { doing, path, errno },
        }
    }

    /// Creates an error from an operation, its path and an `io::Error`.
    pub(super) fn from_io(doing: &'static str, path: impl AsRef<Path>, error: &std::io::Error) -> Self {
        Self::io(doing, path, Errno::from_io_error(error).unwrap_or(Errno::IO))
    }

    /// Returns whose fault the error is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::NotAllowed { .. } | Self::TooLarge { .. } | Self::NotFound(_) | Self::Archive(_) => {
                Fault::Caller
            }
            Self::LockTimeout(_) => Fault::Capacity,
            Self::NoSpace { .. }
            | Self::ReadOnly { .. }
            | Self::WritableByOthers { .. }
            | Self::Io { .. }
            | Self::Damaged { .. }
            | Self::System(_) => Fault::Host,
        }
    }
}
