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

use belljar_engine::batch::{Entry, Finished};
use belljar_engine::request::Request;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::{Method, Response};
use serde::Deserialize;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::http::Server;
use crate::batch::{Became, Done, Place};
use crate::env::Environment;
use crate::failure::Failure;

const PATH: &str = "/v1/batches";
const LINES: &str = "application/x-ndjson";
/// Idle time after which a new call is started; shorter than any server's timeout.
const PAUSE: Duration = Duration::from_secs(10);
/// Maximum length of a line: the longest result, with some margin.
const LONGEST: usize = 256 << 20;

/// Runs requests on a server.
pub(crate) struct There {
    server: Arc<Server>,
    jobs: NonZeroUsize,
    call: Option<Call>,
    /// Requests that could not be sent.
    not_sent: VecDeque<Finished>,
}

impl There {
    /// Creates it for the server at this URL.
    pub(crate) fn new(url: &str, environment: &Environment, jobs: NonZeroUsize) -> Result<Self, Failure> {
        let server = Arc::new(Server::of(Some(url), environment)?);
        Ok(Self { server, jobs, call: None, not_sent: VecDeque::new() })
    }

    fn send(&mut self, index: u64, request: &Request) -> Result<(), Failure> {
        let line = serde_json::to_vec(request).map_err(|error| Failure::invalid(error.to_string()))?;
        let paused = |call: &mut Call| call.out.is_empty() && call.since.elapsed() > PAUSE;
        self.call.take_if(paused);
        let call = self.call.get_or_insert_with(|| Call::begin(Arc::clone(&self.server), self.jobs));
        call.send(index, line);
        Ok(())
    }
}

impl Place for There {
    fn running(&self) -> usize {
        self.not_sent.len() + self.call.as_ref().map_or(0, |call| call.out.len())
    }

    fn has_room(&self) -> bool {
        self.running() < self.jobs.get()
    }

    fn start(&mut self, entry: Entry) -> Result<(), Failure> {
        let Entry { index, wanted } = entry;
        match wanted {
            Ok((request, _)) => self.send(index, &request),
            Err(error) => {
                self.not_sent.push_back(Finished { index, result: Err(error) });
                Ok(())
            }
        }
    }

    async fn next(&mut self) -> Option<Result<Done, Failure>> {
        if let Some(finished) = self.not_sent.pop_front() {
            return Some(Done::of(&finished));
        }
        let call = self.call.as_mut().filter(|call| !call.out.is_empty())?;
        Some(call.next().await)
    }

    /// Drops the connection, upon which the server cancels its executions.
    fn cancel(&mut self) {
        self.call = None;
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Incoming>, Failure>>>>;

enum Answer {
    Awaited(Answering),
    Comes(Incoming),
}

/// An HTTP call and its lines in flight.
struct Call {
    lines: Sender<Bytes>,
    answer: Answer,
    ready: Vec<u8>,
    /// The server's index of the next line.
    number: u64,
    /// Maps the server's index of a line to the index in the input file.
    out: HashMap<u64, u64>,
    /// Time of the last activity.
    since: Instant,
}

impl Call {
    fn begin(server: Arc<Server>, jobs: NonZeroUsize) -> Self {
        let (lines, waiting) = channel(jobs.get());
        let answer = async move {
            let body = Lines(waiting).map_err(|never| match never {}).boxed_unsync();
            server.exchange(Method::POST, PATH, [LINES, LINES], body).await
        };
        let answer = Answer::Awaited(Box::pin(answer));
        Self { lines, answer, ready: Vec::new(), number: 0, out: HashMap::new(), since: Instant::now() }
    }

    fn send(&mut self, index: u64, mut line: Vec<u8>) {
        line.push(b'\n');
        // The channel has room for all jobs, so this fails only if the call has ended; then the response says
        // why.
        let _ = self.lines.try_send(line.into());
        self.out.insert(self.number, index);
        self.number += 1;
        self.since = Instant::now();
    }

    async fn next(&mut self) -> Result<Done, Failure> {
        loop {
            if let Some(end) = self.ready.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.ready.drain(..=end).collect();
                self.since = Instant::now();
                return self.take(&line);
            }
            if self.ready.len() > LONGEST {
                return Err(lost("a line of the batch is too long"));
            }
            match &mut self.answer {
                Answer::Awaited(answer) => self.answer = Answer::Comes(answer.await?.into_body()),
                Answer::Comes(body) => {
                    let frame = body.frame().await.ok_or_else(|| lost("the connection closed early"))?;
                    let frame = frame.map_err(|error| lost(&error.to_string()))?;
                    self.ready.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                }
            }
        }
    }

    /// Converts a result line: replaces the server's index by the one in the input file.
    fn take(&mut self, line: &[u8]) -> Result<Done, Failure> {
        let Told { index, status } =
            serde_json::from_slice(line).map_err(|error| lost(&format!("not a result line: {error}")))?;
        let own = self.out.remove(&index).ok_or_else(|| lost("a result of an unknown request"))?;
        let theirs = format!("{{\"index\":{index},");
        let rest = line.strip_prefix(theirs.as_bytes()).ok_or_else(|| lost("not a result line"))?;
        let became = match status.as_deref() {
            Some("succeeded") => Became::Succeeded,
            Some("cancelled") => Became::Cancelled,
            Some("refused") => Became::NotRun,
            Some(_) => Became::Failed,
            None => Became::NotRun,
        };
        Ok(Done { became, line: [format!("{{\"index\":{own},").as_bytes(), rest].concat() })
    }
}

/// The fields read from a result line.
#[derive(Debug, Deserialize)]
struct Told {
    index: u64,
    status: Option<String>,
}

fn lost(why: &str) -> Failure {
    Failure::host(format!("cannot read the server's response: {why}"))
}

/// The body of a call: lines as they are sent.
struct Lines(Receiver<Bytes>);

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}
