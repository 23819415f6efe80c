//! Many requests at once: so many run at a time, and results come in the order in which they finish.
//!
//! Nothing is spawned and nothing waits in line here. Runs advance while [`Batch::next`] is awaited, and whoever has
//! the requests starts the next one when there is room and the results so far have found their way out.

use std::fmt;
use std::num::NonZeroUsize;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::{Serialize, Serializer};

use crate::provider::{Blind, BoxFuture};
use crate::report::Report;
use crate::request::{HostPaths, Request};
use crate::{Engine, Error, ErrorCode};

/// One request of a batch, or why it is none.
#[derive(Debug)]
pub struct Entry {
    /// Its place in the batch.
    pub index: u64,
    /// What is asked for.
    pub wanted: Result<(Request, HostPaths), Error>,
}

/// What came of one request. As JSON it is the result object, or `{"error":{"code","message"}}`, with `index`.
#[derive(Debug)]
pub struct Finished {
    /// Its place in the batch.
    pub index: u64,
    /// The result, or why nothing ran.
    pub result: Result<Report, Error>,
}

/// Requests under way.
pub struct Batch<'a> {
    engine: &'a Engine,
    jobs: NonZeroUsize,
    running: FuturesUnordered<BoxFuture<'a, Finished>>,
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("jobs", &self.jobs).field("running", &self.running.len()).finish()
    }
}

impl<'a> Batch<'a> {
    /// A batch of which so many run at a time.
    pub fn new(engine: &'a Engine, jobs: NonZeroUsize) -> Self {
        Self { engine, jobs, running: FuturesUnordered::new() }
    }

    /// How many are under way.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether one more may be started.
    pub fn has_room(&self) -> bool {
        self.running.len() < self.jobs.get()
    }

    /// Takes a request; it starts when [`Batch::next`] is awaited. Ask [`Batch::has_room`] first.
    pub fn start(&mut self, id: String, entry: Entry, cancel: BoxFuture<'a, ()>) {
        let engine = self.engine;
        self.running.push(Box::pin(async move {
            let Entry { index, wanted } = entry;
            let result = match wanted.and_then(|(request, paths)| engine.admit(request, paths)) {
                Ok(admitted) => engine.execute(id, admitted, &mut Blind, cancel).await,
                Err(error) => Err(error),
            };
            Finished { index, result }
        }));
    }

    /// The next one to finish; nothing where none is under way. Dropping this future loses nothing.
    pub async fn next(&mut self) -> Option<Finished> {
        self.running.next().await
    }
}

#[derive(Serialize)]
struct Ran<'a> {
    index: u64,
    #[serde(flatten)]
    report: &'a Report,
}

#[derive(Serialize)]
struct NotRun {
    index: u64,
    error: Reason,
}

#[derive(Serialize)]
struct Reason {
    code: ErrorCode,
    message: String,
}

impl Serialize for Finished {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let index = self.index;
        match &self.result {
            Ok(report) => Ran { index, report }.serialize(serializer),
            Err(error) => {
                let error = Reason { code: error.code(), message: error.to_string() };
                NotRun { index, error }.serialize(serializer)
            }
        }
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
