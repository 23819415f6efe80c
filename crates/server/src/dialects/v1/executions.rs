//! `/v1/executions`: run, show, list, cancel and delete executions.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::finding::Finding;
use belljar_engine::language::Language;
use belljar_engine::policy::Verdict;
use belljar_engine::report::{Report, Status};
use belljar_engine::request::{self, Request};
use belljar_store::executions::{ExecutionFilter, ExecutionPage, Idempotency};
use belljar_store::{Digest, ExecutionId};
use schemars::JsonSchema;
use serde::Serialize;

use super::execution_events::{execution_stream, result_stream};
use super::inputs::{self, AcceptedAnswer, ExecutionAnswer};
use super::schema;
use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::error::Error;
use crate::executions::executor::{self, StartOutcome};
use crate::executions::inputs::{InputsRequest, admit_inputs};
use crate::executions::live_executions::CancelOnDrop;
use crate::executions::{admit, check_quota, stored_result};
use crate::http::body::{JsonBody, SortedJson};
use crate::http::callers::RunCaller;
use crate::http::events::accepts_events;
use crate::http::query::Query;
use crate::sandboxes::live_sandbox::SandboxInUse;
use crate::streams::StreamSlot;

const DEFAULT_PAGE_SIZE: u32 = 50;

/// Runs code or a command in a fresh sandbox, or once for each of many inputs, each in a sandbox of its own.
#[utoipa::path(
    post, path = "/v1/executions", tag = "executions", request_body = ref(schema::request::<Request>()),
    params(("Idempotency-Key" = Option<String>, Header,
        description = "Repeating the same request with the same key runs it only once")),
    responses(
        (status = 200, description = "The result of the program, whatever it did. With \
            `Accept: text/event-stream`, events: output while it runs (`output`), then the `result`. With `inputs`, \
            an object with the list `results` in their order; with `Accept: application/x-ndjson`, a line for each \
            result as they finish, and with `Accept: text/event-stream` an event, whose `index` is the number of \
            the input, from 0",
            body = ref(schema::response::<ExecutionAnswer>())),
        (status = 202, description = "Queued: the answer to `\"wait\": false`", body = ref(schema::response::<AcceptedAnswer>())),
    )
)]
pub(crate) async fn create(
    State(state): State<Arc<AppState>>,
    RunCaller(caller): RunCaller,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, Error> {
    run(&state, &caller, None, &headers, body).await
}

/// Runs the request of a body, in a fresh sandbox or inside an existing one.
pub(super) async fn run(
    state: &Arc<AppState>,
    caller: &Caller,
    inside: Option<SandboxInUse>,
    headers: &HeaderMap,
    body: JsonBody,
) -> Result<Response, Error> {
    let wants_events = accepts_events(headers);
    let JsonBody { bytes, reservation } = body;
    let idempotency = idempotency(headers, inside.as_ref(), &bytes)?;
    let mut request = request::parse(&bytes)?;
    drop(bytes);
    let detached = request.wait.take() == Some(false);
    if inside.is_none()
        && let Some(inputs) = request.inputs.take()
    {
        let wanted = InputsRequest { request, inputs, idempotency, detached };
        return inputs::run(state, caller, headers, wanted, reservation).await;
    }
    // Checked before anything runs, so that a missing stream slot does not cancel a running execution.
    let slot = if wants_events { Some(state.streams.open(&caller.tenant)?) } else { None };
    // With an idempotency key, the client can ask again for the result; without one, it cannot.
    let cancels_on_drop = idempotency.is_none();
    let mut job = admit(state, caller, inside, request, reservation).await?;
    (job.idempotency, job.detached, job.keeps_transcript) = (idempotency, detached, detached || wants_events);
    check_quota(state, caller).await?;
    let (running, task) = match executor::start(state, caller, job).await? {
        StartOutcome::Running(running, task) => (running, task),
        StartOutcome::Known(id) => {
            let known = answer_repeated(state, caller, &id, detached, wants_events).await?;
            return Ok(with_stream_slot(known, slot));
        }
    };
    if detached {
        return Ok(accepted(&running.id));
    }
    let cancel_on_drop = cancels_on_drop.then(|| CancelOnDrop(Arc::clone(&running)));
    if wants_events {
        drop(task);
        return Ok(with_stream_slot(execution_stream(running, cancel_on_drop), slot));
    }
    task.await;
    running.done().await.map(result)
}

/// Keeps the stream slot, if any, until the response has been sent.
fn with_stream_slot(response: Response, slot: Option<StreamSlot>) -> Response {
    match slot {
        Some(slot) => slot.hold_during(response),
        None => response,
    }
}

/// Result of a policy check.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Checked {
    /// Verdict: passed or refused.
    status: &'static str,
    /// Reason for the refusal in one line; null if it passed.
    error: Option<String>,
    /// Findings of the policy.
    findings: Vec<Finding>,
}

/// An accepted execution.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Accepted<'a> {
    /// Execution id.
    id: &'a ExecutionId,
    /// Status of the execution, `queued`.
    status: Status,
}

/// Checks a request against its policy, as an execution would, without running it.
#[utoipa::path(
    post, path = "/v1/check", tag = "executions", request_body = ref(schema::request::<Request>()),
    responses((status = 200, description = "Findings of the policy", body = ref(schema::response::<Checked>())),
        (status = 422, description = "Invalid request")))]
pub(crate) async fn check(
    State(state): State<Arc<AppState>>,
    RunCaller(caller): RunCaller,
    body: JsonBody,
) -> Result<SortedJson<Checked>, Error> {
    let JsonBody { bytes, reservation } = body;
    let mut request = request::parse(&bytes)?;
    drop(bytes);
    request.wait = None;
    let verdict = match request.inputs.take() {
        None => admit(&state, &caller, None, request, reservation).await?.admitted.verdict().clone(),
        Some(inputs) => {
            let wanted = InputsRequest { request, inputs, idempotency: None, detached: false };
            admit_inputs(&state, &caller, wanted, reservation).await?.verdict().clone()
        }
    };
    let Verdict { findings, refusal } = verdict;
    let status = if refusal.is_some() { "refused" } else { "passed" };
    Ok(SortedJson(Checked { status, error: refusal, findings }))
}

/// Returns the idempotency key and a digest of the request. The same body in another sandbox is another
/// request.
fn idempotency(
    headers: &HeaderMap,
    inside: Option<&SandboxInUse>,
    body: &[u8],
) -> Result<Option<Idempotency>, Error> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let key = value.to_str().unwrap_or_default().parse()?;
    let request = match inside {
        None => Digest::compute(body),
        Some(sandbox) => Digest::compute(&[sandbox.id.as_str().as_bytes(), body].concat()),
    };
    Ok(Some(Idempotency { key, request }))
}

/// Answers a repeated request from the execution of the first one.
async fn answer_repeated(
    state: &Arc<AppState>,
    caller: &Caller,
    id: &ExecutionId,
    detached: bool,
    wants_events: bool,
) -> Result<Response, Error> {
    let mut response = match state.live_executions.find(&caller.tenant, id) {
        _ if detached => accepted(id),
        Some(running) if wants_events => execution_stream(running, None),
        Some(running) => running.done().await.map(result)?,
        None => stored(state, caller, id, wants_events).await?,
    };
    response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
    Ok(response)
}

/// Returns an execution: its result, or its status until it ends.
#[utoipa::path(
    get, path = "/v1/executions/{id}", tag = "executions",
    params(("id" = String, Path, description = "Execution id")),
    responses(
        (status = 200, description = "The result, or the status while queued or running. With \
            `Accept: text/event-stream`, the output from the beginning, if the execution was started with \
            `\"wait\": false` or with events", body = ref(schema::response::<Report>())),
        (status = 404, description = "No such execution in this tenant"),
    )
)]
pub(crate) async fn show(
    State(state): State<Arc<AppState>>,
    RunCaller(caller): RunCaller,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let id = parse_id(&id)?;
    match state.live_executions.find(&caller.tenant, &id) {
        Some(running) if accepts_events(&headers) => {
            let slot = state.streams.open(&caller.tenant)?;
            Ok(slot.hold_during(execution_stream(running, None)))
        }
        _ => stored(&state, &caller, &id, accepts_events(&headers)).await,
    }
}

/// Cancels a queued or running execution. Deletes one that has ended, with its result.
#[utoipa::path(
    delete, path = "/v1/executions/{id}", tag = "executions",
    params(("id" = String, Path, description = "Execution id")),
    responses(
        (status = 200, description = "The execution was canceled; its result, which is kept",
            body = ref(schema::response::<Report>())),
        (status = 204, description = "The execution had ended and is deleted"),
        (status = 404, description = "No such execution in this tenant"),
        (status = 409, description = "The end of the execution is not recorded yet"),
    )
)]
pub(crate) async fn remove(
    State(state): State<Arc<AppState>>,
    RunCaller(caller): RunCaller,
    Path(id): Path<String>,
) -> Result<Response, Error> {
    let id = parse_id(&id)?;
    if let Some(running) = state.live_executions.find(&caller.tenant, &id) {
        running.cancel();
        return running.done().await.map(result);
    }
    state.store.delete_execution(&caller.tenant, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Cancels a queued or running execution. Never deletes anything, even if it ends at the same time.
#[utoipa::path(
    post, path = "/v1/executions/{id}/cancel", tag = "executions",
    params(("id" = String, Path, description = "Execution id")),
    responses(
        (status = 200, description = "The execution has ended; its result", body = ref(schema::response::<Report>())),
        (status = 404, description = "No such execution in this tenant"),
        (status = 409, description = "The execution had already ended"),
    )
)]
pub(crate) async fn cancel(
    State(state): State<Arc<AppState>>,
    RunCaller(caller): RunCaller,
    Path(id): Path<String>,
) -> Result<Response, Error> {
    let id = parse_id(&id)?;
    let Some(running) = state.live_executions.find(&caller.tenant, &id) else {
        state.store.execution(&caller.tenant, &id).await?.ok_or(Error::NotFound("execution"))?;
        return Err(Error::Ended);
    };
    running.cancel();
    running.done().await.map(result)
}

/// Lists the tenant's executions, newest first.
#[utoipa::path(
    get, path = "/v1/executions", tag = "executions",
    params(
        ("status" = Option<String>, Query, description = "Only executions with this status"),
        ("language" = Option<String>, Query, description = "Only executions in this language"),
        ("metadata.KEY" = Option<String>, Query,
            description = "Only executions with this value in their metadata; up to eight keys"),
        ("limit" = Option<u32>, Query, description = "Page size, 1 to 200; default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses(
        (status = 200, description = "A page of executions", body = ref(schema::response::<ExecutionPage>())),
        (status = 422, description = "Invalid parameter"),
    )
)]
pub(crate) async fn list(
    State(state): State<Arc<AppState>>,
    RunCaller(caller): RunCaller,
    query: RawQuery,
) -> Result<Json<ExecutionPage>, Error> {
    let query = Query::parse(query, &["status", "language", "metadata.", "limit", "cursor"])?;
    let filter = ExecutionFilter {
        status: query.parsed::<Status>("status")?,
        language: query.get("language").map(canonical_language),
        metadata: query.with_prefix("metadata."),
    };
    let cursor = query.parsed::<ExecutionId>("cursor")?;
    let limit = query.parsed("limit")?.unwrap_or(DEFAULT_PAGE_SIZE);
    Ok(Json(state.store.executions(&caller.tenant, filter, cursor, limit).await?))
}

/// Maps a language alias to its canonical name.
fn canonical_language(language: &str) -> String {
    Language::from_name(language).map_or(language, |language| language.name).to_owned()
}

/// Parses an execution id. A malformed id is reported as an unknown one.
fn parse_id(text: &str) -> Result<ExecutionId, Error> {
    text.parse().map_err(|_| Error::NotFound("execution"))
}

async fn stored(
    state: &AppState,
    caller: &Caller,
    id: &ExecutionId,
    wants_events: bool,
) -> Result<Response, Error> {
    let json = stored_result(state, caller, id).await?;
    Ok(if wants_events { result_stream(&json) } else { result(json) })
}

fn result(json: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], Body::from(json)).into_response()
}

fn accepted(id: &ExecutionId) -> Response {
    let location = [(header::LOCATION, format!("/v1/executions/{id}"))];
    (StatusCode::ACCEPTED, location, Json(Accepted { id, status: Status::Queued })).into_response()
}
