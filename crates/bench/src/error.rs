//! Errors of the benchmark.

use std::path::Path;

use belljar_engine::ErrorCode;
use belljar_engine::provider::ProviderError;
use thiserror::Error;

/// Why nothing could be measured.
#[derive(Debug, Error)]
pub enum BenchError {
    /// An argument is wrong.
    #[error("{0}")]
    Argument(String),
    /// This machine, or something that was measured on it, failed.
    #[error("{0}")]
    Machine(String),
    /// The engine refused or failed a run.
    #[error(transparent)]
    Engine(#[from] belljar_engine::Error),
}

impl BenchError {
    pub(crate) fn machine(message: impl Into<String>) -> Self {
        Self::Machine(message.into())
    }

    /// Returns the error code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Argument(_) => ErrorCode::InvalidRequest,
            Self::Machine(_) => ErrorCode::SetupFailed,
            Self::Engine(error) => error.code(),
        }
    }
}

impl From<ProviderError> for BenchError {
    fn from(error: ProviderError) -> Self {
        Self::Engine(error.into())
    }
}

/// Formats a path for a message. Names may contain control characters, so they are escaped.
pub(crate) fn quote_path(path: &Path) -> String {
    format!("'{}'", path.display().to_string().escape_debug())
}
