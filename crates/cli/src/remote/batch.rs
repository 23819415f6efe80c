//! `belljar run --server URL --batch FILE`: sends requests and receives their results over one HTTP call.
//!
//! A line is sent when a job is free, so `--jobs` limits the lines in flight. A server closes an idle batch,
//! so after a pause the next line starts a new call.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use belljar_engine::batch::{BatchEntry, BatchResult};
use belljar_engine::request::Request;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::{Method, Response};
use serde::Deserialize;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::artifacts::{ArtifactView, save_artifacts};
use super::http::Server;
use crate::artifacts::ArtifactFolder;
use crate::batch::{BatchRunner, LineStatus, ResultLine};
use crate::env::Environment;
use crate::error::CliError;

const PATH: &str = "/v1/batches";
const LINES: &str = "application/x-ndjson";
/// Idle time after which a new call is started; shorter than any server's timeout.
const MAX_CALL_IDLE: Duration = Duration::from_secs(10);
/// Maximum length of a line: the longest result, with some margin.
const MAX_LINE_BYTES: usize = 256 << 20;

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

    /// Saves the artifacts of a result. If that is interrupted, it starts again.
    async fn save(&self, result: &ResultLine) -> Result<(), CliError> {
        let Some(folder) = &self.artifacts else { return Ok(()) };
        let LineArtifacts { index, artifacts } = serde_json::from_slice(&result.line)
            .map_err(|error| response_error(&format!("not a result line: {error}")))?;
        save_artifacts(&self.server, folder, Some(index), &artifacts).await
    }

    fn send(&mut self, index: u64, request: &Request) -> Result<(), CliError> {
        let line = serde_json::to_vec(request).map_err(|error| CliError::invalid(error.to_string()))?;
        let paused =
            |call: &mut BatchCall| call.in_flight.is_empty() && call.last_activity.elapsed() > MAX_CALL_IDLE;
        self.call.take_if(paused);
        let call = self.call.get_or_insert_with(|| BatchCall::start(Arc::clone(&self.server), self.jobs));
        call.send(index, line);
        Ok(())
    }
}

impl BatchRunner for RemoteRunner {
    fn running(&self) -> usize {
        let saving = usize::from(self.saving.is_some());
        saving + self.not_sent.len() + self.call.as_ref().map_or(0, |call| call.in_flight.len())
    }

    fn has_free_job(&self) -> bool {
        self.running() < self.jobs.get()
    }

    fn start(&mut self, entry: BatchEntry) -> Result<(), CliError> {
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
            let call = self.call.as_mut().filter(|call| !call.in_flight.is_empty())?;
            match call.next().await {
                Ok(result) => self.saving = Some(result),
                Err(error) => return Some(Err(error)),
            }
        }
        let saved = match &self.saving {
            Some(result) => self.save(result).await,
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

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Incoming>, CliError>>>>;

enum CallResponse {
    Pending(ResponseFuture),
    Streaming(Incoming),
}

/// An HTTP call and its lines in flight.
struct BatchCall {
    lines: Sender<Bytes>,
    answer: CallResponse,
    ready: Vec<u8>,
    /// The server's index of the next line.
    next_index: u64,
    /// Maps the server's index of a line to the index in the input file.
    in_flight: HashMap<u64, u64>,
    /// Time of the last activity.
    last_activity: Instant,
}

impl BatchCall {
    fn start(server: Arc<Server>, jobs: NonZeroUsize) -> Self {
        let (lines, waiting) = channel(jobs.get());
        let answer = async move {
            let body = LineBody(waiting).map_err(|never| match never {}).boxed_unsync();
            server.exchange(Method::POST, PATH, [LINES, LINES], body).await
        };
        let answer = CallResponse::Pending(Box::pin(answer));
        Self {
            lines,
            answer,
            ready: Vec::new(),
            next_index: 0,
            in_flight: HashMap::new(),
            last_activity: Instant::now(),
        }
    }

    fn send(&mut self, index: u64, mut line: Vec<u8>) {
        line.push(b'\n');
        // The channel has room for all jobs, so this fails only if the call has ended; then the response says
        // why.
        let _ = self.lines.try_send(line.into());
        self.in_flight.insert(self.next_index, index);
        self.next_index += 1;
        self.last_activity = Instant::now();
    }

    async fn next(&mut self) -> Result<ResultLine, CliError> {
        loop {
            if let Some(end) = self.ready.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.ready.drain(..=end).collect();
                self.last_activity = Instant::now();
                return self.convert_line(&line);
            }
            if self.ready.len() > MAX_LINE_BYTES {
                return Err(response_error("a line of the batch is too long"));
            }
            match &mut self.answer {
                CallResponse::Pending(answer) => {
                    self.answer = CallResponse::Streaming(answer.await?.into_body())
                }
                CallResponse::Streaming(body) => {
                    let frame =
                        body.frame().await.ok_or_else(|| response_error("the connection closed early"))?;
                    let frame = frame.map_err(|error| response_error(&error.to_string()))?;
                    self.ready.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                }
            }
        }
    }

    /// Converts a result line: replaces the server's index by the one in the input file.
    fn convert_line(&mut self, line: &[u8]) -> Result<ResultLine, CliError> {
        let ResultHead { index, status } = serde_json::from_slice(line)
            .map_err(|error| response_error(&format!("not a result line: {error}")))?;
        let input_index =
            self.in_flight.remove(&index).ok_or_else(|| response_error("a result of an unknown request"))?;
        let theirs = format!("{{\"index\":{index},");
        let rest = line.strip_prefix(theirs.as_bytes()).ok_or_else(|| response_error("not a result line"))?;
        let became = match status.as_deref() {
            Some("succeeded") => LineStatus::Succeeded,
            Some("cancelled") => LineStatus::Cancelled,
            Some("refused") => LineStatus::NotRun,
            Some(_) => LineStatus::Failed,
            None => LineStatus::NotRun,
        };
        Ok(ResultLine {
            status: became,
            line: [format!("{{\"index\":{input_index},").as_bytes(), rest].concat(),
        })
    }
}

/// The fields read from a result line.
#[derive(Debug, Deserialize)]
struct ResultHead {
    index: u64,
    status: Option<String>,
}

/// The artifacts of a result line.
#[derive(Debug, Deserialize)]
struct LineArtifacts {
    index: u64,
    #[serde(default)]
    artifacts: Vec<ArtifactView>,
}

fn response_error(why: &str) -> CliError {
    CliError::host(format!("cannot read the server's response: {why}"))
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
