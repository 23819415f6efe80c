//! Work that must not be left half done when a client disconnects runs in its own task: an administrative
//! action with its entry in the audit log, a pause, a resumption.

use std::future::Future;

use crate::error::Error;

/// Runs a future to completion, even if the caller stops waiting.
pub(crate) async fn run_uncancellable<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(work).await.map_err(|_| Error::Internal)?
}
