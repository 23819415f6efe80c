//! Errors of guest requests, for callers.

use std::io;

use belljar_engine::sandbox_handle::SandboxError;
use belljar_guest::GuestError;
use belljar_guest::host::DisconnectReason;

use super::GuestSandbox;

impl GuestSandbox {
    /// Converts an error, and finds out why the sandbox is gone. A guest that violated the protocol is killed.
    async fn convert_error(&self, error: GuestError) -> SandboxError {
        match error {
            GuestError::Gone(DisconnectReason::Violation(violation)) => {
                self.backend.kill();
                SandboxError::Gone(format!("the guest violated the protocol: {violation}"))
            }
            GuestError::Gone(_) => SandboxError::Gone(self.backend.exit_cause().await),
            other => other.into(),
        }
    }

    /// Converts the error of a result.
    pub(super) async fn convert_result<T>(&self, result: Result<T, GuestError>) -> Result<T, SandboxError> {
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
