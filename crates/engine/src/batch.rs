//! Batches: many requests, a bounded number running at a time, results in the order in which they finish.
//!
//! A batch spawns no tasks and has no queue. Executions advance while [`Batch::next`] is awaited; the caller
//! starts the next request when there is room and earlier results have been written out.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::{Serialize, Serializer};

use crate::admit::AdmittedRequest;
use crate::inputs::AdmittedProgram;
use crate::provider::{BoxFuture, DiscardSink};
use crate::report::Report;
use crate::request::{HostPaths, Input, Request};
use crate::{Engine, Error, ErrorCode};

/// One request of a batch, or the error that made it invalid.
#[derive(Debug)]
pub struct BatchEntry<T> {
    /// Position in the batch, from 0.
    pub index: u64,
    /// The request, or why it could not be parsed.
    pub request: Result<T, Error>,
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

/// Checks a request of a batch.
type Admit<'a, T> = dyn Fn(T) -> Result<AdmittedRequest, Error> + Send + Sync + 'a;

/// The executions of a batch that are in progress. `T` is what its lines are: requests, or inputs of one program.
pub struct Batch<'a, T> {
    engine: &'a Engine,
    admit: Arc<Admit<'a, T>>,
    jobs: NonZeroUsize,
    running: FuturesUnordered<BoxFuture<'a, BatchResult>>,
}

impl<T> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("jobs", &self.jobs).field("running", &self.running.len()).finish()
    }
}

impl<'a> Batch<'a, (Request, HostPaths)> {
    /// Creates a batch that runs at most `jobs` requests at a time.
    pub fn new(engine: &'a Engine, jobs: NonZeroUsize) -> Self {
        let admit = move |(request, paths)| engine.admit(request, paths);
        Self { engine, admit: Arc::new(admit), jobs, running: FuturesUnordered::new() }
    }
}

impl<'a> Batch<'a, Input> {
    /// Creates a batch that runs a program with at most `jobs` inputs at a time.
    pub fn of_inputs(engine: &'a Engine, program: AdmittedProgram, jobs: NonZeroUsize) -> Self {
        let admit = move |input| program.with_input(&input);
        Self { engine, admit: Arc::new(admit), jobs, running: FuturesUnordered::new() }
    }
}

impl<'a, T: Send + 'a> Batch<'a, T> {
    /// Returns the number of running executions.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Returns whether another request may be started.
    pub fn has_room(&self) -> bool {
        self.running.len() < self.jobs.get()
    }

    /// Adds a request, which starts when [`Batch::next`] is awaited. Check [`Batch::has_room`] first.
    pub fn start(&mut self, id: String, entry: BatchEntry<T>, cancel: BoxFuture<'a, ()>) {
        let (engine, admit) = (self.engine, Arc::clone(&self.admit));
        self.running.push(Box::pin(async move {
            let BatchEntry { index, request: wanted } = entry;
            let result = match wanted.and_then(|request| admit(request)) {
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
