//! Errors of a store's folders.

use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error as ThisError;

/// Why a folder of a store cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum FolderError {
    /// The folder is writable by others.
    #[error("{}: others can write here", .0.display())]
    WritableByOthers(PathBuf),
    /// Another process holds a lock for too long.
    #[error("{}: locked by another process", .0.display())]
    LockTimeout(PathBuf),
    /// An error of the disk.
    #[error("cannot {doing} {}: {errno}", .path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// Its path.
        path: PathBuf,
        /// The system's error.
        errno: Errno,
    },
    /// The system failed to provide random numbers or a thread.
    #[error("system error: {0}")]
    System(String),
}

impl FolderError {
    /// Creates an error from an operation, its path and an errno.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>, errno: Errno) -> Self {
        Self::Io { doing, path: path.into(), errno }
    }

    /// Creates an error from an operation, its path and an `io::Error`.
    pub(crate) fn from_io(doing: &'static str, path: impl Into<PathBuf>, error: &std::io::Error) -> Self {
        Self::io(doing, path, Errno::from_io_error(error).unwrap_or(Errno::IO))
    }
}

/// Runs blocking work on a separate thread.
///
/// # Errors
/// Fails like the work, or if there is no thread for it.
pub async fn blocking<T: Send + 'static, E: From<FolderError> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(FolderError::System(error.to_string()).into()))
}
