//! Runs the lines of a batch, on this machine or on a server.

use belljar_engine::batch::{Batch, BatchEntry, BatchResult};
use belljar_engine::report::Status;
use tokio::sync::watch;

use super::counts::LineStatus;
use crate::artifacts::ArtifactFolder;
use crate::error::CliError;
use crate::identity::execution_id;

/// Runs a bounded number of lines at once.
pub(crate) trait BatchRunner {
    /// What a line is: a request, or an input of a program.
    type Line: Send + 'static;

    /// Returns the number of running requests.
    fn running(&self) -> usize;
    /// Returns whether another request may start.
    fn has_free_job(&self) -> bool;
    /// Starts a request.
    fn start(&mut self, entry: BatchEntry<Self::Line>) -> Result<(), CliError>;
    /// Waits for the next finished request; `None` when none is running. Dropping this future loses nothing.
    async fn next(&mut self) -> Option<Result<ResultLine, CliError>>;
    /// Cancels all running requests.
    fn cancel(&mut self);
}

/// The result of a request: its output line and its status.
#[derive(Debug)]
pub(crate) struct ResultLine {
    pub(crate) status: LineStatus,
    pub(crate) line: Vec<u8>,
}

impl ResultLine {
    pub(crate) fn from_finished(finished: &BatchResult) -> Result<Self, CliError> {
        let became = match finished.result.as_ref().map(|report| report.status) {
            Ok(Status::Succeeded) => LineStatus::Succeeded,
            Ok(Status::Cancelled) => LineStatus::Cancelled,
            Ok(Status::Failed | Status::TimedOut | Status::LimitExceeded) => LineStatus::Failed,
            Ok(Status::Refused | Status::Queued | Status::Running | Status::Interrupted) => {
                LineStatus::NotRun
            }
            Err(_) => LineStatus::NotRun,
        };
        let line = serde_json::to_vec(finished);
        let mut line = line.map_err(|error| CliError::host(format!("write a result as JSON: {error}")))?;
        line.push(b'\n');
        Ok(Self { status: became, line })
    }
}

/// Runs lines on this machine.
#[derive(Debug)]
pub(super) struct LocalRunner<'a, T> {
    batch: Batch<'a, T>,
    cancel: watch::Sender<bool>,
    artifacts: Option<ArtifactFolder>,
}

impl<'a, T> LocalRunner<'a, T> {
    pub(super) fn new(batch: Batch<'a, T>, artifacts: Option<ArtifactFolder>) -> Self {
        Self { batch, cancel: watch::Sender::new(false), artifacts }
    }

    fn finish(&self, finished: &BatchResult) -> Result<ResultLine, CliError> {
        if let (Some(folder), Ok(report)) = (&self.artifacts, &finished.result) {
            folder.save_all(report)?;
        }
        ResultLine::from_finished(finished)
    }
}

impl<T: Send + 'static> BatchRunner for LocalRunner<'_, T> {
    type Line = T;

    fn running(&self) -> usize {
        self.batch.running()
    }

    fn has_free_job(&self) -> bool {
        self.batch.has_room()
    }

    fn start(&mut self, entry: BatchEntry<T>) -> Result<(), CliError> {
        let mut cancel = self.cancel.subscribe();
        // The sender outlives the batch, so an error here cannot happen before the batch ends.
        let cancelled = async move { drop(cancel.wait_for(|cancel| *cancel).await) };
        self.batch.start(execution_id()?, entry, Box::pin(cancelled));
        Ok(())
    }

    async fn next(&mut self) -> Option<Result<ResultLine, CliError>> {
        self.batch.next().await.map(|finished| self.finish(&finished))
    }

    fn cancel(&mut self) {
        self.cancel.send_replace(true);
    }
}
