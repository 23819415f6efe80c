//! Errors of pulling, importing and storing images.

use std::path::{Path, PathBuf};

use belljar_beneath::{FolderError, OverBudget, UnpackBudget};
use belljar_engine::Fault;
use rustix::io::Errno;
use thiserror::Error as ThisError;

/// Why an image is not available.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum ImageError {
    /// The text is not an image name.
    #[error("'{name}' is not an image name ({why}); use a name like python:3.12-slim")]
    Name {
        /// The text, escaped.
        name: String,
        /// The reason.
        why: String,
    },
    /// The image is not in the store.
    #[error("no image '{0}'; 'belljar image list' shows all images")]
    NotFound(String),
    /// The registry refused or failed the request.
    #[error("{registry}: {why}")]
    Registry {
        /// The registry.
        registry: String,
        /// The reason, and what to do.
        why: String,
    },
    /// The image does not support this platform.
    #[error("'{name}' does not support this machine ({wanted}), only {offered}")]
    Platform {
        /// The image.
        name: String,
        /// The platform of this machine.
        wanted: String,
        /// The platforms of the image.
        offered: String,
    },
    /// A part does not match its digest.
    #[error("{what} does not match its digest: it was modified in transit, or the source is wrong")]
    Tampered {
        /// A manifest, a configuration or a layer.
        what: String,
    },
    /// The image is malformed or hostile.
    #[error("invalid image: {0}")]
    Refused(String),
    /// The image exceeds a limit.
    #[error("the image is too large: more than {limit} {what}")]
    TooLarge {
        /// The limit.
        limit: u64,
        /// The unit of the limit.
        what: &'static str,
    },
    /// The disk is full.
    #[error("{}: disk full; free some space, or remove images with 'belljar image rm'", .0.display())]
    NoSpace(PathBuf),
    /// The folder is not writable, or is writable by others.
    #[error(
        "{}: must be writable by you alone; chmod it, or set another 'images.folder' in belljar.toml",
        .0.display()
    )]
    Folder(PathBuf),
    /// Another error of the system.
    #[error("cannot {doing} {}: {cause}", .path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// Its path.
        path: PathBuf,
        /// The system's error.
        cause: String,
    },
}

impl ImageError {
    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }

    /// Creates an error from an operation, its path and an I/O error.
    pub(crate) fn io(doing: &'static str, path: impl AsRef<Path>, error: impl Into<std::io::Error>) -> Self {
        let (path, error) = (path.as_ref().to_owned(), error.into());
        match Errno::from_io_error(&error) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::NoSpace(path),
            _ => Self::Io { doing, path, cause: error.to_string() },
        }
    }

    /// Creates an error from the limit that was reached.
    pub(crate) fn over_budget(over: OverBudget, limits: UnpackBudget) -> Self {
        match over {
            OverBudget::Bytes => Self::TooLarge { limit: limits.bytes, what: "bytes" },
            OverBudget::Entries => Self::TooLarge { limit: limits.entries, what: "entries" },
        }
    }

    /// Returns whose fault the error is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::NoSpace(_) | Self::Folder(_) | Self::Io { .. } => Fault::Host,
            _ => Fault::Caller,
        }
    }
}

impl From<FolderError> for ImageError {
    fn from(error: FolderError) -> Self {
        match error {
            FolderError::WritableByOthers(path)
            | FolderError::Io { path, errno: Errno::ROFS | Errno::ACCESS | Errno::PERM, .. } => {
                Self::Folder(path)
            }
            FolderError::Io { doing, path, errno } => Self::io(doing, path, errno),
            other => Self::Io { doing: "store images", path: PathBuf::new(), cause: other.to_string() },
        }
    }
}
