//! Errors of operations on a long-lived sandbox.

use std::io;

use thiserror::Error;

use super::failure::{Failure, FailureKind};
use crate::packages::PackagesError;
use crate::provider::ProviderError;

/// Why an operation on a long-lived sandbox failed.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// The sandbox refused the operation: the caller's path, command or archive is the problem.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The sandbox is paused and cannot answer until it is resumed.
    #[error("the sandbox is paused; resume it first")]
    Paused,
    /// The sandbox is halted because a volume exceeds its size: nothing is started or written until files are
    /// removed.
    #[error("the sandbox is halted: {0}; remove some files to continue")]
    Halted(String),
    /// The sandbox no longer exists.
    #[error("the sandbox is gone: {0}")]
    Gone(String),
    /// Packages that a task needs could not be provided; nothing ran.
    #[error(transparent)]
    Packages(#[from] PackagesError),
    /// The provider failed, or does not support the operation.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The caller's data source failed, not the sandbox.
    #[error("cannot read the data to write: {0}")]
    Source(io::Error),
}

impl SandboxError {
    /// Returns the error for changing the hosts of a sandbox without an egress proxy.
    pub fn hosts_not_changeable() -> Self {
        let message =
            "the network can only be changed for a sandbox that was created with mode 'hosts' or 'internet'";
        ProviderError::unsupported("network", message).into()
    }

    /// Returns the error of a change that would need a proxy, which this sandbox does not have.
    pub fn host_loopback_not_reachable() -> Self {
        let message = "'localhost' means the sandbox itself in a sandbox that was created without it; create a sandbox \
                       with it in network.hosts";
        ProviderError::unsupported("network.hosts", message).into()
    }

    /// Returns the kind of failure, if the sandbox reported one.
    pub fn kind(&self) -> Option<FailureKind> {
        match self {
            Self::Failed(failure) => Some(failure.kind),
            _ => None,
        }
    }

    /// Extracts the error from an [`io::Error`] of a sandbox's byte stream.
    pub fn from_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
    /// Returns the closest [`io::ErrorKind`].
    pub fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Gone(_) => io::ErrorKind::BrokenPipe,
            Self::Failed(failure) => failure.kind.to_io(),
            Self::Halted(_) => io::ErrorKind::StorageFull,
            Self::Paused | Self::Packages(_) | Self::Provider(_) | Self::Source(_) => io::ErrorKind::Other,
        }
    }
}

impl From<SandboxError> for io::Error {
    fn from(error: SandboxError) -> Self {
        Self::new(error.io_kind(), error)
    }
}
