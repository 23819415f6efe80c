//! `POST /v1/executions` with `inputs`: the results of many executions, in the form that the client accepts.
//!
//! | `Accept` | response |
//! |---|---|
//! | `application/x-ndjson` | a line for each result, as they finish |
//! | `text/event-stream` | an event `result` or `error` for each, as they finish |
//! | anything else | `{"results":[…]}` in the order of the inputs, sent as far as it is complete |
//!
//! The next result is taken once the previous one has been sent, so a client that does not read delays only its own
//! inputs. A result that is early for the ordered form is not kept: it is read again from the store.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::report::{Report, Status};
use belljar_store::ExecutionId;
use belljar_store::executions::BeginResult;
use futures_util::stream;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::mpsc::{Receiver, channel};

use super::batches::{BatchLine, with_index};
use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::body_memory::BodyReservation;
use crate::error::Error;
use crate::executions::inputs::{InputResult, InputsRequest, admit_inputs};
use crate::executions::live_executions::ExecutionResult;
use crate::executions::{check_quota, stored_result};
use crate::http::events::{EventProducer, accepts_events, accepts_lines, event, event_stream};

/// Size of the early results that the ordered form keeps in memory.
const MAX_EARLY_BYTES: usize = 256 << 10;

/// The answer to an execution, or to one with many inputs.
#[derive(JsonSchema)]
#[schemars(untagged, rename = "ExecutionAnswer")]
#[expect(dead_code, reason = "answers are made of stored results, which are JSON already")]
pub(crate) enum ExecutionAnswer {
    One(Box<Report>),
    Many(InputResults),
}

/// The results of many inputs.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "answers are made of stored results, which are JSON already")]
pub(crate) struct InputResults {
    /// A result, or the reason it was not run, for each input in their order; `index` counts from 0.
    results: Vec<BatchLine>,
}

/// An accepted execution, or many.
#[derive(JsonSchema)]
#[schemars(untagged, rename = "AcceptedAnswer")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum AcceptedAnswer<'a> {
    One(super::executions::Accepted<'a>),
    Many(AcceptedInputs<'a>),
}

/// The accepted executions of many inputs.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AcceptedInputs<'a> {
    /// An execution for each input, in their order.
    executions: Vec<AcceptedInput<'a>>,
}

/// The accepted execution of an input.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AcceptedInput<'a> {
    /// Number of the input, from 0.
    index: usize,
    /// Execution id.
    id: &'a ExecutionId,
    /// Status of the execution, `queued`.
    status: Status,
}

/// Runs a program with many inputs.
pub(super) async fn run(
    state: &Arc<AppState>,
    caller: &Caller,
    headers: &HeaderMap,
    wanted: InputsRequest,
    reservation: BodyReservation,
) -> Result<Response, Error> {
    let (detached, idempotency) = (wanted.detached, wanted.idempotency.clone());
    let slot = if detached { None } else { Some(state.streams.open(&caller.tenant)?) };
    let job = admit_inputs(state, caller, wanted, reservation).await?;
    check_quota(state, caller).await?;
    let Some(slot) = slot else {
        let detached = job.detach().await?;
        return Ok(mark_repeated(accepted(&detached.ids), detached.is_repeated));
    };
    let earlier = match idempotency {
        Some(first) => state.store.find_execution_of_key(&caller.tenant, first).await?,
        None => BeginResult::Fresh,
    };
    if earlier == BeginResult::Conflict {
        return Err(Error::IdempotencyConflict);
    }
    let (sender, results) = channel(1);
    let count = job.count() as u64;
    tokio::spawn(job.run(sender));
    let response = match (accepts_events(headers), accepts_lines(headers)) {
        (true, _) => event_stream(InputEvents(results)),
        (false, true) => lines(results),
        (false, false) => ordered(OrderedResults {
            state: Arc::clone(state),
            caller: caller.clone(),
            results,
            next: 0,
            count,
            early: BTreeMap::new(),
            early_bytes: 0,
            position: Position::Start,
        }),
    };
    Ok(mark_repeated(slot.hold_during(response), earlier != BeginResult::Fresh))
}

fn mark_repeated(mut response: Response, is_repeated: bool) -> Response {
    if is_repeated {
        response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
    }
    response
}

fn accepted(ids: &[ExecutionId]) -> Response {
    let execution = |(index, id)| AcceptedInput { index, id, status: Status::Queued };
    let executions = ids.iter().enumerate().map(execution).collect();
    (StatusCode::ACCEPTED, Json(AcceptedInputs { executions })).into_response()
}

fn lines(results: Receiver<InputResult>) -> Response {
    let lines = stream::unfold(results, |mut results| async {
        let InputResult { index, result, .. } = results.recv().await?;
        let line = [&with_index(index, result)[..], b"\n"].concat();
        Some((Ok::<_, Infallible>(Bytes::from(line)), results))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

struct InputEvents(Receiver<InputResult>);

impl EventProducer for InputEvents {
    async fn next(&mut self) -> Option<Bytes> {
        let InputResult { index, result, .. } = self.0.recv().await?;
        let name = if result.is_ok() { "result" } else { "error" };
        Some(event(name, &with_index(index, result)))
    }
}

fn ordered(results: OrderedResults) -> Response {
    let parts = stream::unfold(results, |mut results| async {
        let part = results.next_part().await?;
        Some((Ok::<_, Infallible>(part), results))
    });
    ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(parts)).into_response()
}

/// Sorts results into the order of the inputs.
struct OrderedResults {
    state: Arc<AppState>,
    caller: Caller,
    results: Receiver<InputResult>,
    /// Index of the next result to send.
    next: u64,
    count: u64,
    /// Results that arrived before their turn.
    early: BTreeMap<u64, EarlyResult>,
    early_bytes: usize,
    position: Position,
}

enum EarlyResult {
    Kept(ExecutionResult),
    Stored(ExecutionId),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Start,
    Inside,
    End,
}

impl OrderedResults {
    /// Returns the next part of the JSON object, or `None` after the last.
    async fn next_part(&mut self) -> Option<Bytes> {
        let start: &[u8] = match self.position {
            Position::Start => b"{\"results\":[",
            Position::Inside => b",",
            Position::End => return None,
        };
        let index = self.next;
        let object = with_index(index, self.take_next().await);
        self.next += 1;
        self.position = if self.next < self.count { Position::Inside } else { Position::End };
        let end: &[u8] = if self.position == Position::End { b"]}" } else { b"" };
        Some([start, &object, end].concat().into())
    }

    async fn take_next(&mut self) -> ExecutionResult {
        loop {
            match self.early.remove(&self.next) {
                Some(EarlyResult::Kept(result)) => {
                    self.early_bytes -= result.as_ref().map_or(0, Bytes::len);
                    return result;
                }
                Some(EarlyResult::Stored(id)) => return stored_result(&self.state, &self.caller, &id).await,
                None => {}
            }
            // Every input has a result, so the channel is open until the last one.
            let InputResult { index, id, result } = self.results.recv().await.ok_or(Error::Internal)?;
            if index == self.next {
                return result;
            }
            self.keep(index, id, result);
        }
    }

    /// Keeps a result that is early, if it is small. Others are read from the store in their turn.
    fn keep(&mut self, index: u64, id: Option<ExecutionId>, result: ExecutionResult) {
        let size = result.as_ref().map_or(0, Bytes::len);
        let early = match id {
            Some(id) if result.is_ok() && self.early_bytes + size > MAX_EARLY_BYTES => {
                EarlyResult::Stored(id)
            }
            _ => {
                self.early_bytes += size;
                EarlyResult::Kept(result)
            }
        };
        self.early.insert(index, early);
    }
}
