//! The start of an execution, until it is recorded.

use std::sync::{Arc, Mutex, PoisonError};

use belljar_store::executions::NewExecution;

/// The start of an execution that is not yet recorded in the store.
#[derive(Debug, Clone, Default)]
pub(super) struct UnrecordedStart(Arc<Mutex<Option<NewExecution>>>);

impl UnrecordedStart {
    /// Sets the start.
    pub(super) fn set(&self, new: NewExecution) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
    }

    /// Returns the start, for the caller to record.
    pub(super) fn take(&self) -> Option<NewExecution> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
