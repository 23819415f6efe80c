//! Why a living sandbox did not do what it was asked.

use std::io;

use thiserror::Error;

use super::failure::{Failure, FailureKind};
use crate::provider::ProviderError;

/// Why a living sandbox did not do what it was asked.
#[derive(Debug, Error)]
pub enum LivingError {
    /// It answered that it cannot: the caller's path, command or archive.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// It is paused, and would answer only when it is resumed.
    #[error("the sandbox is paused; resume it first")]
    Paused,
    /// It is halted: nothing is started or written in it until somebody removes what is too much.
    #[error("the sandbox is halted: {0}; remove some of it, and it goes on")]
    Halted(String),
    /// It is gone.
    #[error("the sandbox is gone: {0}")]
    Gone(String),
    /// Something that this provider or host does not do.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The source of what was to be written failed, not the sandbox.
    #[error("reading what is to be written: {0}")]
    Source(io::Error),
}

impl LivingError {
    /// Said where hosts were to be changed, and there is nothing that they could be changed of.
    pub fn no_gate() -> Self {
        let message = "only a sandbox that was created with mode 'hosts' can be given other hosts".to_owned();
        ProviderError::Unsupported { field: "network", message }.into()
    }

    /// The kind of failure, where the sandbox told one.
    pub fn kind(&self) -> Option<FailureKind> {
        match self {
            Self::Failed(failure) => Some(failure.kind),
            _ => None,
        }
    }

    /// The error that an [`io::Error`] of a sandbox's byte stream carries.
    pub fn of_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<LivingError> for io::Error {
    fn from(error: LivingError) -> Self {
        let kind = match &error {
            LivingError::Gone(_) => io::ErrorKind::BrokenPipe,
            LivingError::Failed(failure) => failure.kind.to_io(),
            LivingError::Halted(_) => io::ErrorKind::StorageFull,
            LivingError::Paused | LivingError::Provider(_) | LivingError::Source(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
