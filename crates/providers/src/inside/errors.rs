//! Converts guest errors for callers.

use std::io;

use belljar_engine::living::{Failure, FailureKind, LivingError};
use belljar_guest::GuestError;
use belljar_guest::host::Loss;

use super::Inside;

impl Inside {
    /// Converts an error. A guest that violated the protocol is killed.
    async fn explain(&self, error: GuestError) -> LivingError {
        match error {
            GuestError::Gone(Loss::Violation(violation)) => {
                self.keeper.kill();
                LivingError::Gone(format!("the guest violated the protocol: {violation}"))
            }
            GuestError::Gone(_) => LivingError::Gone(self.keeper.fate().await),
            other => plain(other),
        }
    }

    /// Converts the error of a result.
    pub(crate) async fn told<T>(&self, result: Result<T, GuestError>) -> Result<T, LivingError> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => Err(self.explain(error).await),
        }
    }

    /// Converts an I/O error, which either wraps a guest error or comes from the source.
    pub(super) async fn told_io<T>(&self, result: io::Result<T>) -> Result<T, LivingError> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => Err(match GuestError::of_io(&error) {
                Some(guest) => self.explain(guest.clone()).await,
                None => LivingError::Source(error),
            }),
        }
    }
}

/// Converts an error without determining why a sandbox is gone.
pub(super) fn plain(error: GuestError) -> LivingError {
    match error {
        GuestError::Failed(failure) => LivingError::Failed(failure),
        GuestError::Gone(loss) => LivingError::Gone(loss.to_string()),
        GuestError::RequestTooLarge => {
            LivingError::Failed(Failure::new(FailureKind::TooLarge, "request", "too large"))
        }
    }
}
