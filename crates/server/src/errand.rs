//! What must not be left half done because a client hangs up: it is done in a task of its own.

use std::future::Future;

use crate::error::Error;

/// Does something to its end, whoever still waits for it.
pub(crate) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(work).await.map_err(|_| Error::Internal)?
}
