//! What a guest's errors mean to whoever asked.

use std::io;

use belljar_engine::living::{Failure, FailureKind, LivingError};
use belljar_guest::GuestError;
use belljar_guest::host::Loss;

use super::Inside;

impl Inside {
    /// The error that a caller sees. One that breaks the rules of its line is killed.
    async fn explain(&self, error: GuestError) -> LivingError {
        match error {
            GuestError::Gone(Loss::Violation(violation)) => {
                self.keeper.kill();
                LivingError::Gone(format!("it broke the protocol: {violation}"))
            }
            GuestError::Gone(_) => LivingError::Gone(self.keeper.fate().await),
            other => plain(other),
        }
    }

    /// The same for what may have gone well.
    pub(crate) async fn told<T>(&self, result: Result<T, GuestError>) -> Result<T, LivingError> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => Err(self.explain(error).await),
        }
    }

    /// The same where the guest's error is inside of another, or it is the source that failed.
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

/// The same where nobody can be asked why it is gone.
pub(super) fn plain(error: GuestError) -> LivingError {
    match error {
        GuestError::Failed(failure) => LivingError::Failed(failure),
        GuestError::Gone(loss) => LivingError::Gone(loss.to_string()),
        GuestError::RequestTooLarge => {
            LivingError::Failed(Failure::new(FailureKind::TooLarge, "request", "is too large"))
        }
    }
}
