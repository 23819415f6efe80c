//! Runs the requests of a batch, on this machine or on a server.

use std::num::NonZeroUsize;

use belljar_engine::Engine;
use belljar_engine::batch::{Batch, Entry, Finished};
use belljar_engine::report::Status;
use tokio::sync::watch;

use super::tally::Became;
use crate::failure::Failure;
use crate::identity::execution_id;

/// Runs a bounded number of requests at once.
pub(crate) trait Place {
    /// Returns the number of running requests.
    fn running(&self) -> usize;
    /// Returns whether another request may start.
    fn has_room(&self) -> bool;
    /// Starts a request.
    fn start(&mut self, entry: Entry) -> Result<(), Failure>;
    /// Waits for the next finished request; `None` when none is running. Dropping this future loses nothing.
    async fn next(&mut self) -> Option<Result<Done, Failure>>;
    /// Cancels all running requests.
    fn cancel(&mut self);
}

/// The result of a request: its output line and its status.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) became: Became,
    pub(crate) line: Vec<u8>,
}

impl Done {
    pub(crate) fn of(finished: &Finished) -> Result<Self, Failure> {
        let became = match finished.result.as_ref().map(|report| report.status) {
            Ok(Status::Succeeded) => Became::Succeeded,
            Ok(Status::Cancelled) => Became::Cancelled,
            Ok(Status::Failed | Status::TimedOut | Status::LimitExceeded) => Became::Failed,
            Ok(Status::Refused) => Became::NotRun,
            Err(_) => Became::NotRun,
        };
        let line = serde_json::to_vec(finished);
        let mut line = line.map_err(|error| Failure::host(format!("write a result as JSON: {error}")))?;
        line.push(b'\n');
        Ok(Self { became, line })
    }
}

/// Runs requests on this machine.
#[derive(Debug)]
pub(super) struct Here<'a> {
    batch: Batch<'a>,
    cancel: watch::Sender<bool>,
}

impl<'a> Here<'a> {
    pub(super) fn new(engine: &'a Engine, jobs: NonZeroUsize) -> Self {
        Self { batch: Batch::new(engine, jobs), cancel: watch::Sender::new(false) }
    }
}

impl Place for Here<'_> {
    fn running(&self) -> usize {
        self.batch.running()
    }

    fn has_room(&self) -> bool {
        self.batch.has_room()
    }

    fn start(&mut self, entry: Entry) -> Result<(), Failure> {
        let mut cancel = self.cancel.subscribe();
        // The sender outlives the batch, so an error here cannot happen before the batch ends.
        let cancelled = async move { drop(cancel.wait_for(|cancel| *cancel).await) };
        self.batch.start(execution_id()?, entry, Box::pin(cancelled));
        Ok(())
    }

    async fn next(&mut self) -> Option<Result<Done, Failure>> {
        self.batch.next().await.map(|finished| Done::of(&finished))
    }

    fn cancel(&mut self) {
        self.cancel.send_replace(true);
    }
}
