//! `/v1/executions`: run, show, list and cancel executions.

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
use belljar_engine::request::{self, HostPaths, Request};
use belljar_store::executions::{ExecutionFilter, ExecutionPage, ExecutionRecord, Idempotency};
use belljar_store::{Digest, ExecutionId, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

use crate::app_state::AppState;
use crate::authentication::{Caller, RunCaller};
use crate::body::{BodyReservation, JsonBody, SortedJson};
use crate::error::Error;
use crate::executor::{self, ExecutionJob, StartOutcome};
use crate::live_executions::CancelOnDrop;
use crate::query::Query;
use crate::sandboxes::SandboxInUse;
use crate::streams::StreamSlot;
use crate::{events, result_json, schema};

const DEFAULT_PAGE_SIZE: u32 = 50;

/// Runs code or a command in a fresh sandbox.
#[utoipa::path(
    post, path = "/v1/executions", tag = "executions", request_body = ref(schema::request::<Request>()),
    params(("Idempotency-Key" = Option<String>, Header,
        description = "Repeating the same request with the same key runs it only once")),
    responses(
        (status = 200, description = "The result of the program, whatever it did. With \
            `Accept: text/event-stream`, events: output while it runs (`output`), then the `result`",
            body = ref(schema::response::<Report>())),
        (status = 202, description = "Queued: the answer to `\"wait\": false`", body = ref(schema::response::<Accepted>())),
    )
)]
pub(crate) async fn create(
    State(world): State<Arc<AppState>>,
    RunCaller(caller): RunCaller,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, Error> {
    run(&world, &caller, None, &headers, body).await
}

/// Runs the request of a body, in a fresh sandbox or inside an existing one.
pub(crate) async fn run(
    world: &Arc<AppState>,
    caller: &Caller,
    inside: Option<SandboxInUse>,
    headers: &HeaderMap,
    body: JsonBody,
) -> Result<Response, Error> {
    let wants_events = events::accepts_events(headers);
    // Checked before anything runs, so that a missing stream slot does not cancel a running execution.
    let place = if wants_events { Some(world.streams.open(&caller.tenant)?) } else { None };
    let JsonBody { bytes, hold } = body;
    let idempotency = idempotency(headers, inside.as_ref(), &bytes)?;
    let mut request = request::parse(&bytes)?;
    drop(bytes);
    let detached = request.wait.take() == Some(false);
    // With an idempotency key, the client can ask again for the result; without one, it cannot.
    let holds_leash = idempotency.is_none();
    let mut job = admit(world, caller, inside, request, hold).await?;
    (job.idempotency, job.detached, job.keeps_transcript) = (idempotency, detached, detached || wants_events);
    check_quota(world, caller).await?;
    let (running, carried) = match executor::start(world, caller, job).await? {
        StartOutcome::Running(running, carried) => (running, carried),
        StartOutcome::Known(id) => {
            let known = answer_repeated(world, caller, &id, detached, wants_events).await?;
            return Ok(with_stream_slot(known, place));
        }
    };
    if detached {
        return Ok(accepted(&running.id));
    }
    let leash = holds_leash.then(|| CancelOnDrop(Arc::clone(&running)));
    if wants_events {
        drop(carried);
        return Ok(with_stream_slot(events::execution_stream(running, leash), place));
    }
    carried.await;
    running.done().await.map(result)
}

/// Keeps the stream slot, if any, until the response has been sent.
fn with_stream_slot(response: Response, place: Option<StreamSlot>) -> Response {
    match place {
        Some(place) => place.hold_during(response),
        None => response,
    }
}

/// Admits a request on behalf of the caller's tenant.
pub(crate) async fn admit(
    world: &Arc<AppState>,
    caller: &Caller,
    inside: Option<SandboxInUse>,
    request: Request,
    hold: BodyReservation,
) -> Result<ExecutionJob, Error> {
    let hold = hold.into_request()?;
    let language = match &request.language {
        Some(name) => Language::from_name(name)?.name,
        None => "command",
    };
    let metadata = request.metadata.clone();
    let (there, owner) = (Arc::clone(world), caller.clone());
    let reading = world.readers.run_check(&caller.tenant, move || {
        let (engine, tenancy) = (&there.engine, owner.tenancy());
        let admitted = match &inside {
            None => engine.admit_for_tenant(request, HostPaths::default(), tenancy)?,
            Some(sandbox) => engine.admit_in_sandbox(&sandbox.admitted, request, tenancy.policy)?,
        };
        Ok::<_, Error>((admitted, inside))
    });
    let (admitted, inside) = reading.await??;
    // An execution inside a sandbox already belongs to the sandbox's tenant.
    let admitted = if inside.is_none() { admitted.with_tenant(caller.tenant.as_str()) } else { admitted };
    Ok(ExecutionJob {
        admitted,
        sandbox: inside,
        language,
        metadata,
        idempotency: None,
        detached: false,
        keeps_transcript: false,
        reservation: hold,
    })
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
    State(world): State<Arc<AppState>>,
    RunCaller(caller): RunCaller,
    body: JsonBody,
) -> Result<SortedJson<Checked>, Error> {
    let JsonBody { bytes, hold } = body;
    let mut request = request::parse(&bytes)?;
    drop(bytes);
    request.wait = None;
    let job = admit(&world, &caller, None, request, hold).await?;
    let Verdict { findings, refusal } = job.admitted.verdict();
    let status = if refusal.is_some() { "refused" } else { "passed" };
    Ok(SortedJson(Checked { status, error: refusal.clone(), findings: findings.clone() }))
}

/// Refuses a tenant that has used up its CPU quota for the day.
pub(crate) async fn check_quota(world: &AppState, caller: &Caller) -> Result<(), Error> {
    let Some(seconds) = caller.quotas.cpu_seconds_per_day else { return Ok(()) };
    let now = Timestamp::now();
    let used = world.store.usage(&caller.tenant, now.day()).await?;
    if used.cpu_ms < seconds.saturating_mul(1_000) {
        return Ok(());
    }
    let left = now.day().next().start().millis() - now.millis();
    Err(Error::CpuQuotaUsedUp { retry_after: left.unsigned_abs().div_ceil(1_000) })
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
    world: &Arc<AppState>,
    caller: &Caller,
    id: &ExecutionId,
    detached: bool,
    wants_events: bool,
) -> Result<Response, Error> {
    let mut response = match world.live.find(&caller.tenant, id) {
        _ if detached => accepted(id),
        Some(running) if wants_events => events::execution_stream(running, None),
        Some(running) => running.done().await.map(result)?,
        None => stored(world, caller, id, wants_events).await?,
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
    State(world): State<Arc<AppState>>,
    RunCaller(caller): RunCaller,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let id = parse_id(&id)?;
    match world.live.find(&caller.tenant, &id) {
        Some(running) if events::accepts_events(&headers) => {
            let place = world.streams.open(&caller.tenant)?;
            Ok(place.hold_during(events::execution_stream(running, None)))
        }
        _ => stored(&world, &caller, &id, events::accepts_events(&headers)).await,
    }
}

/// Cancels a queued or running execution.
#[utoipa::path(
    delete, path = "/v1/executions/{id}", tag = "executions",
    params(("id" = String, Path, description = "Execution id")),
    responses(
        (status = 200, description = "The execution has ended; its result", body = ref(schema::response::<Report>())),
        (status = 404, description = "No such execution in this tenant"),
        (status = 409, description = "The execution had already ended"),
    )
)]
pub(crate) async fn cancel(
    State(world): State<Arc<AppState>>,
    RunCaller(caller): RunCaller,
    Path(id): Path<String>,
) -> Result<Response, Error> {
    let id = parse_id(&id)?;
    let Some(running) = world.live.find(&caller.tenant, &id) else {
        world.store.execution(&caller.tenant, &id).await?.ok_or(Error::NotFound("execution"))?;
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
    State(world): State<Arc<AppState>>,
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
    Ok(Json(world.store.executions(&caller.tenant, filter, cursor, limit).await?))
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
    world: &AppState,
    caller: &Caller,
    id: &ExecutionId,
    wants_events: bool,
) -> Result<Response, Error> {
    let found: Option<ExecutionRecord> = world.store.execution(&caller.tenant, id).await?;
    let json = Bytes::from(result_json::stored_result(found.ok_or(Error::NotFound("execution"))?));
    Ok(if wants_events { events::result_stream(&json) } else { result(json) })
}

fn result(json: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], Body::from(json)).into_response()
}

fn accepted(id: &ExecutionId) -> Response {
    let place = [(header::LOCATION, format!("/v1/executions/{id}"))];
    (StatusCode::ACCEPTED, place, Json(Accepted { id, status: Status::Queued })).into_response()
}
