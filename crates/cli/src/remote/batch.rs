//! `belljar run --server URL --batch FILE`: sends requests and receives their results over one HTTP call.
//!
//! A line is sent when a job is free, so `--jobs` limits the lines in flight. A server closes an idle batch,
//! so after a pause the next line starts a new call.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use belljar_engine::batch::{BatchEntry, BatchResult};
use belljar_engine::request::{HostPaths, Request};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::{Body, Bytes, Frame};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::http::Server;
use super::result_lines::{LINES, ResultLines, save_line_artifacts};
use crate::artifacts::ArtifactFolder;
use crate::batch::{BatchRunner, ResultLine};
use crate::env::Environment;
use crate::error::CliError;

const PATH: &str = "/v1/batches";
/// Idle time after which a new call is started; shorter than any server's timeout.
const MAX_CALL_IDLE: Duration = Duration::from_secs(10);

/// Runs requests on a server.
pub(crate) struct RemoteRunner {
    server: Arc<Server>,
    jobs: NonZeroUsize,
    call: Option<BatchCall>,
    /// Requests that could not be sent.
    not_sent: VecDeque<BatchResult>,
    artifacts: Option<ArtifactFolder>,
    /// A result whose artifacts are being saved.
    saving: Option<ResultLine>,
}

impl RemoteRunner {
    /// Creates it for the server at this URL.
    pub(crate) fn new(
        url: &str,
        environment: &Environment,
        jobs: NonZeroUsize,
        artifacts: Option<ArtifactFolder>,
    ) -> Result<Self, CliError> {
        let server = Arc::new(Server::new(Some(url), environment)?);
        Ok(Self { server, jobs, call: None, not_sent: VecDeque::new(), artifacts, saving: None })
    }

    fn send(&mut self, index: u64, request: &Request) -> Result<(), CliError> {
        let line = serde_json::to_vec(request).map_err(|error| CliError::invalid(error.to_string()))?;
        let paused = |call: &mut BatchCall| {
            call.results.in_flight.is_empty() && call.last_activity.elapsed() > MAX_CALL_IDLE
        };
        self.call.take_if(paused);
        let call = self.call.get_or_insert_with(|| BatchCall::start(Arc::clone(&self.server), self.jobs));
        call.send(index, line);
        Ok(())
    }
}

impl BatchRunner for RemoteRunner {
    type Line = (Request, HostPaths);

    fn running(&self) -> usize {
        let saving = usize::from(self.saving.is_some());
        saving + self.not_sent.len() + self.call.as_ref().map_or(0, |call| call.results.in_flight.len())
    }

    fn has_free_job(&self) -> bool {
        self.running() < self.jobs.get()
    }

    fn start(&mut self, entry: BatchEntry<Self::Line>) -> Result<(), CliError> {
        let BatchEntry { index, request: wanted } = entry;
        match wanted {
            Ok((request, _)) => self.send(index, &request),
            Err(error) => {
                self.not_sent.push_back(BatchResult { index, result: Err(error) });
                Ok(())
            }
        }
    }

    async fn next(&mut self) -> Option<Result<ResultLine, CliError>> {
        if let Some(finished) = self.not_sent.pop_front() {
            return Some(ResultLine::from_finished(&finished));
        }
        if self.saving.is_none() {
            let call = self.call.as_mut().filter(|call| !call.results.in_flight.is_empty())?;
            match call.next().await {
                Ok(result) => self.saving = Some(result),
                Err(error) => return Some(Err(error)),
            }
        }
        let saved = match &self.saving {
            Some(result) => save_line_artifacts(&self.server, self.artifacts.as_ref(), result).await,
            None => Ok(()),
        };
        let result = self.saving.take()?;
        Some(saved.map(|()| result))
    }

    /// Drops the connection, upon which the server cancels its executions.
    fn cancel(&mut self) {
        self.call = None;
    }
}

/// An HTTP call and its lines in flight.
struct BatchCall {
    lines: Sender<Bytes>,
    results: ResultLines,
    /// The server's index of the next line.
    next_index: u64,
    /// Time of the last activity.
    last_activity: Instant,
}

impl BatchCall {
    fn start(server: Arc<Server>, jobs: NonZeroUsize) -> Self {
        let (lines, waiting) = channel(jobs.get());
        let results = ResultLines::of(async move {
            let body = LineBody(waiting).map_err(|never| match never {}).boxed_unsync();
            server.exchange(Method::POST, PATH, [LINES, LINES], body).await
        });
        Self { lines, results, next_index: 0, last_activity: Instant::now() }
    }

    fn send(&mut self, index: u64, mut line: Vec<u8>) {
        line.push(b'\n');
        // The channel has room for all jobs, so this fails only if the call has ended; then the response says
        // why.
        let _ = self.lines.try_send(line.into());
        self.results.in_flight.insert(self.next_index, index);
        self.next_index += 1;
        self.last_activity = Instant::now();
    }

    async fn next(&mut self) -> Result<ResultLine, CliError> {
        let result = self.results.next().await;
        self.last_activity = Instant::now();
        result
    }
}

/// The body of a call: lines as they are sent.
struct LineBody(Receiver<Bytes>);

impl Body for LineBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}
