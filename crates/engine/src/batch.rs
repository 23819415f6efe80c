//! Batches: many requests, a bounded number running at a time, results in the order in which they finish.
//!
//! A batch spawns no tasks and has no queue. Executions advance while [`Batch::next`] is awaited; the caller
//! starts the next request when there is room and earlier results have been written out.

use std::fmt;
use std::num::NonZeroUsize;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::{Serialize, Serializer};

use crate::provider::{BoxFuture, DiscardSink};
use crate::report::Report;
use crate::request::{HostPaths, Request};
use crate::{Engine, Error, ErrorCode};

/// One request of a batch, or the error that made it invalid.
#[derive(Debug)]
pub struct BatchEntry {
    /// Position in the batch, from 0.
    pub index: u64,
    /// The request, or why it could not be parsed.
    pub request: Result<(Request, HostPaths), Error>,
}

/// The result of one request. Serializes as the result object or `{"error":{"code","message"}}`, with
/// `index`.
#[derive(Debug)]
pub struct BatchResult {
    /// Position in the batch, from 0.
    pub index: u64,
    /// The report, or why nothing ran.
    pub result: Result<Report, Error>,
}

/// The executions of a batch that are in progress.
pub struct Batch<'a> {
    engine: &'a Engine,
    jobs: NonZeroUsize,
    running: FuturesUnordered<BoxFuture<'a, BatchResult>>,
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("jobs", &self.jobs).field("running", &self.running.len()).finish()
    }
}

impl<'a> Batch<'a> {
    /// Creates a batch that runs at most `jobs` requests at a time.
    pub fn new(engine: &'a Engine, jobs: NonZeroUsize) -> Self {
        Self { engine, jobs, running: FuturesUnordered::new() }
    }

    /// Returns the number of running executions.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Returns whether another request may be started.
    pub fn has_room(&self) -> bool {
        self.running.len() < self.jobs.get()
    }

    /// Adds a request, which starts when [`Batch::next`] is awaited. Check [`Batch::has_room`] first.
    pub fn start(&mut self, id: String, entry: BatchEntry, cancel: BoxFuture<'a, ()>) {
        let engine = self.engine;
        self.running.push(Box::pin(async move {
            let BatchEntry { index, request: wanted } = entry;
            let result = match wanted.and_then(|(request, paths)| engine.admit(request, paths)) {
                Ok(admitted) => engine.execute(id, admitted, &mut DiscardSink, cancel).await,
                Err(error) => Err(error),
            };
            BatchResult { index, result: result.map(|report| Report { index: Some(index), ..report }) }
        }));
    }

    /// Waits for the next execution to finish; returns `None` if none is running. Cancel-safe.
    pub async fn next(&mut self) -> Option<BatchResult> {
        self.running.next().await
    }
}

#[derive(Serialize)]
struct ErrorLine {
    index: u64,
    error: ErrorBody,
}

#[derive(Serialize)]
struct ErrorBody {
    code: ErrorCode,
    message: String,
}

impl Serialize for BatchResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let index = self.index;
        match &self.result {
            Ok(report) => report.serialize(serializer),
            Err(error) => {
                let error = ErrorBody { code: error.code(), message: error.to_string() };
                ErrorLine { index, error }.serialize(serializer)
            }
        }
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
