//! `POST /v1/batches`: one request per line in, one result per line out, as they finish and in bounded
//! memory.
//!
//! The next line is read once it can run, and the next result is sent once the previous one has been sent: a
//! client that does not read delays only its own batch.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Request as HttpRequest, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use belljar_engine::provider::BoxFuture;
use belljar_engine::report::Report;
use belljar_engine::request::{Request, parse};
use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use http_body_util::BodyExt;
use schemars::JsonSchema;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::schema;
use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::body_memory::BodyReservation;
use crate::error::Error;
use crate::executions::executor;
use crate::executions::inputs::QUEUE_POLL_INTERVAL;
use crate::executions::live_executions::ExecutionResult;
use crate::executions::{admit, check_quota};
use crate::http::body::{check_type, too_large};
use crate::http::callers::RunCaller;
use crate::http::problem::{Reason, error_json};

/// A line of a batch's response: a result, or the reason the request was refused.
#[derive(JsonSchema)]
#[schemars(untagged, rename = "Line")]
#[expect(dead_code, reason = "lines are made of stored results, which are JSON already")]
pub(super) enum BatchLine {
    Ran(Box<Report>),
    Refused(Refusal),
}

/// A request of a batch that was not run.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "lines are made of error objects, which are JSON already")]
pub(super) struct Refusal {
    /// Line number of the request, from 0.
    index: u64,
    /// Reason it was not run.
    error: Reason,
}

/// Runs a batch of requests, one per line.
#[utoipa::path(
    post, path = "/v1/batches", tag = "executions",
    request_body(content = ref(schema::request::<Request>()), content_type = "application/x-ndjson",
        description = "One request per line"),
    responses(
        (status = 200, description = "One result per line, as they finish; `index` is the line number of the \
            request, from 0",
            body = ref(schema::response::<BatchLine>()), content_type = "application/x-ndjson"),
    )
)]
pub(crate) async fn create(
    State(state): State<Arc<AppState>>,
    RunCaller(caller): RunCaller,
    request: HttpRequest,
) -> Result<Response, Error> {
    check_type(request.headers(), &["x-ndjson", "jsonl", "json"])?;
    let slot = state.streams.open(&caller.tenant)?;
    let lines = BatchLines::new(request.into_body(), &state, &caller);
    let (sender, results) = mpsc::channel(1);
    tokio::spawn(BatchRun { state, caller, lines }.run(sender));
    let results = stream::unfold(results, |mut results| async {
        let line: Bytes = results.recv().await?;
        Some((Ok::<_, Infallible>(line), results))
    });
    let response =
        ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(results)).into_response();
    Ok(slot.hold_during(response))
}

struct BatchRun {
    state: Arc<AppState>,
    caller: Caller,
    lines: BatchLines,
}

impl BatchRun {
    async fn run(mut self, results: mpsc::Sender<Bytes>) {
        let mut running: FuturesUnordered<BoxFuture<'static, Bytes>> = FuturesUnordered::new();
        let (mut open, mut index) = (true, 0);
        while open || !running.is_empty() {
            let room = running.len() < self.state.settings.batch_jobs;
            let line = tokio::select! {
                biased;
                // The client is gone. Returning drops the running futures, which cancels their executions.
                () = results.closed() => return,
                Some(line) = running.next(), if !running.is_empty() => line,
                next = self.lines.next(), if open && room => match next {
                    None if self.lines.disconnected => return,
                    None => { open = false; continue }
                    Some(wanted) => {
                        running.push(Box::pin(run_line(Arc::clone(&self.state), self.caller.clone(), index, wanted)));
                        index += 1;
                        continue;
                    }
                },
                () = sleep(self.state.settings.body_timeout), if running.is_empty() => {
                    open = false;
                    as_line(index, Err(Error::SlowBody))
                }
            };
            if results.send(line).await.is_err() {
                return;
            }
        }
    }
}

async fn run_line(
    state: Arc<AppState>,
    caller: Caller,
    index: u64,
    wanted: Result<(Vec<u8>, BodyReservation), Error>,
) -> Bytes {
    as_line(index, attempt(&state, &caller, wanted).await)
}

async fn attempt(
    state: &Arc<AppState>,
    caller: &Caller,
    wanted: Result<(Vec<u8>, BodyReservation), Error>,
) -> ExecutionResult {
    let (line, reservation) = wanted?;
    let mut request = parse(&line)?;
    drop(line);
    request.wait = None;
    let job = admit(state, caller, None, request, reservation).await?;
    check_quota(state, caller).await?;
    while !state.run_queue.has_room(&caller.tenant) {
        sleep(QUEUE_POLL_INTERVAL).await;
    }
    executor::run_to_end(state, caller, job).await
}

fn as_line(index: u64, done: ExecutionResult) -> Bytes {
    let mut line = with_index(index, done);
    line.push(b'\n');
    line.into()
}

/// Returns the result object, or an error object, with `index` in front.
pub(super) fn with_index(index: u64, done: ExecutionResult) -> Vec<u8> {
    let object = done.unwrap_or_else(|error| error_json(&error).into());
    let rest = object.strip_prefix(b"{").unwrap_or(&object);
    [format!("{{\"index\":{index},").as_bytes(), rest].concat()
}

/// The lines of a body, each at most as long as a body may be.
struct BatchLines {
    body: Body,
    ready: VecDeque<u8>,
    /// Offset at which the search for the end of the line continues.
    searched: usize,
    /// Whether the rest of an overlong line is being skipped.
    skipping: bool,
    ended: bool,
    /// Whether the body broke off because the client disconnected.
    disconnected: bool,
    limit: usize,
    /// Memory reserved for `ready`.
    reservation: BodyReservation,
}

impl BatchLines {
    fn new(body: Body, state: &AppState, caller: &Caller) -> Self {
        let (limit, reservation) = (state.settings.max_body, state.body_memory.reserve(&caller.tenant));
        let ready = VecDeque::new();
        Self {
            body,
            ready,
            searched: 0,
            skipping: false,
            ended: false,
            disconnected: false,
            limit,
            reservation,
        }
    }

    /// Returns the next line that is not blank. Cancel-safe.
    async fn next(&mut self) -> Option<Result<(Vec<u8>, BodyReservation), Error>> {
        loop {
            match self.take_line() {
                Some(line) if std::mem::take(&mut self.skipping) || line.trim_ascii().is_empty() => {
                    drop(self.reservation.split(line.len()));
                    continue;
                }
                Some(line) if line.len() > self.limit => {
                    drop(self.reservation.split(line.len()));
                    return Some(Err(too_large(self.limit)));
                }
                Some(line) => {
                    let reservation = self.reservation.split(line.len());
                    return Some(Ok((line, reservation)));
                }
                None if self.ended => return None,
                None => {}
            }
            if self.ready.len() > self.limit {
                drop(self.reservation.split(self.ready.len()));
                self.ready.clear();
                self.searched = 0;
                if !std::mem::replace(&mut self.skipping, true) {
                    return Some(Err(too_large(self.limit)));
                }
            }
            if let Err(error) = self.read_more().await {
                return Some(Err(error));
            }
        }
    }

    async fn read_more(&mut self) -> Result<(), Error> {
        let frame = match self.body.frame().await {
            Some(Ok(frame)) => frame,
            over => {
                self.ended = true;
                self.disconnected = over.is_some();
                // An incomplete line is not a request.
                if self.disconnected {
                    self.ready.clear();
                }
                return Ok(());
            }
        };
        self.ready.extend(frame.data_ref().into_iter().flatten());
        let covered = self.reservation.grow_to(self.ready.len());
        if covered.is_err() {
            self.ended = true;
            self.ready.clear();
        }
        covered
    }

    fn take_line(&mut self) -> Option<Vec<u8>> {
        let found = self.ready.iter().skip(self.searched).position(|byte| *byte == b'\n');
        let length = match found {
            Some(position) => self.searched + position + 1,
            // The last line may lack a line feed.
            None if self.ended && !self.ready.is_empty() => self.ready.len(),
            None => {
                self.searched = self.ready.len();
                return None;
            }
        };
        self.searched = 0;
        Some(self.ready.drain(..length).collect())
    }
}
