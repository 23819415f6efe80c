//! Converts guest errors for callers.

use std::io;

use belljar_engine::sandbox_handle::{Failure, FailureKind, SandboxError};
use belljar_guest::GuestError;
use belljar_guest::host::DisconnectReason;

use super::GuestClient;

impl GuestClient {
    /// Converts an error. A guest that violated the protocol is killed.
    async fn convert_error(&self, error: GuestError) -> SandboxError {
        match error {
            GuestError::Gone(DisconnectReason::Violation(violation)) => {
                self.lifecycle.kill();
                SandboxError::Gone(format!("the guest violated the protocol: {violation}"))
            }
            GuestError::Gone(_) => SandboxError::Gone(self.lifecycle.exit_cause().await),
            other => to_living_error(other),
        }
    }

    /// Converts the error of a result.
    pub(crate) async fn convert_result<T>(&self, result: Result<T, GuestError>) -> Result<T, SandboxError> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => Err(self.convert_error(error).await),
        }
    }

    /// Converts an I/O error, which either wraps a guest error or comes from the source.
    pub(super) async fn convert_io_result<T>(&self, result: io::Result<T>) -> Result<T, SandboxError> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => Err(match GuestError::from_io(&error) {
                Some(guest) => self.convert_error(guest.clone()).await,
                None => SandboxError::Source(error),
            }),
        }
    }
}

/// Converts an error without determining why a sandbox is gone.
pub(super) fn to_living_error(error: GuestError) -> SandboxError {
    match error {
        GuestError::Failed(failure) => SandboxError::Failed(failure),
        GuestError::Gone(loss) => SandboxError::Gone(loss.to_string()),
        GuestError::RequestTooLarge => {
            SandboxError::Failed(Failure::new(FailureKind::TooLarge, "request", "too large"))
        }
    }
}
