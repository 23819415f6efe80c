//! `/v1/executions`: run, show, list and cancel executions.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::language::Language;
use belljar_engine::policy::Verdict;
use belljar_engine::request::{HostPaths, Request};
use belljar_store::executions::{Execution, Filter, Idempotency, Page, Status};
use belljar_store::{Digest, ExecutionId, Timestamp};
use serde_json::{Value, json};

use crate::accounts::{Caller, Runner};
use crate::body::{BodyHold, Whole};
use crate::conduct::{self, Job, Started};
use crate::error::Error;
use crate::live::Leash;
use crate::query::Query;
use crate::sandboxes::Used;
use crate::streams::StreamPlace;
use crate::world::World;
use crate::{events, object, schema};

const PAGE: u32 = 50;

/// Runs code or a command in a fresh sandbox.
#[utoipa::path(
    post, path = "/v1/executions", tag = "executions", request_body = schema::Request,
    params(("Idempotency-Key" = Option<String>, Header,
        description = "Repeating the same request with the same key runs it only once")),
    responses(
        (status = 200, description = "The result of the program, whatever it did. With \
            `Accept: text/event-stream`, events: output while it runs (`output`), then the `result`",
            body = schema::Result),
        (status = 202, description = "Queued: the answer to `\"wait\": false`", body = schema::Accepted),
    )
)]
pub(crate) async fn create(
    State(world): State<Arc<World>>,
    Runner(caller): Runner,
    headers: HeaderMap,
    body: Whole,
) -> Result<Response, Error> {
    run(&world, &caller, None, &headers, body).await
}

/// Runs the request of a body, in a fresh sandbox or inside an existing one.
pub(crate) async fn run(
    world: &Arc<World>,
    caller: &Caller,
    inside: Option<Used>,
    headers: &HeaderMap,
    body: Whole,
) -> Result<Response, Error> {
    let wants_events = events::wanted(headers);
    // Checked before anything runs, so that a missing stream slot does not cancel a running execution.
    let place = if wants_events { Some(world.streams.open(&caller.tenant)?) } else { None };
    let Whole { bytes, hold } = body;
    let idempotency = idempotency(headers, inside.as_ref(), &bytes)?;
    let mut request = Request::parse(&bytes)?;
    drop(bytes);
    let detached = request.wait.take() == Some(false);
    // With an idempotency key, the client can ask again for the result; without one, it cannot.
    let holds_leash = idempotency.is_none();
    let mut job = admit(world, caller, inside, request, hold).await?;
    (job.idempotency, job.detached, job.watched) = (idempotency, detached, detached || wants_events);
    check_quota(world, caller).await?;
    let (running, carried) = match conduct::start(world, caller, job).await? {
        Started::Running(running, carried) => (running, carried),
        Started::Known(id) => {
            let known = again(world, caller, &id, detached, wants_events).await?;
            return Ok(streamed(known, place));
        }
    };
    if detached {
        return Ok(accepted(&running.id));
    }
    let leash = holds_leash.then(|| Leash(Arc::clone(&running)));
    if wants_events {
        drop(carried);
        return Ok(streamed(events::response(running, leash), place));
    }
    carried.await;
    running.done().await.map(result)
}

/// Keeps the stream slot, if any, until the response has been sent.
fn streamed(response: Response, place: Option<StreamPlace>) -> Response {
    match place {
        Some(place) => place.within(response),
        None => response,
    }
}

/// Admits a request on behalf of the caller's tenant.
pub(crate) async fn admit(
    world: &Arc<World>,
    caller: &Caller,
    inside: Option<Used>,
    request: Request,
    hold: BodyHold,
) -> Result<Job, Error> {
    let hold = hold.parsed()?;
    let language = match &request.language {
        Some(name) => Language::named(name)?.name,
        None => "command",
    };
    let metadata = request.metadata.clone();
    let (there, owner) = (Arc::clone(world), caller.clone());
    let reading = world.readers.read(&caller.tenant, move || {
        let (engine, tenancy) = (&there.engine, owner.tenancy());
        let admitted = match &inside {
            None => engine.admit_under(request, HostPaths::default(), tenancy)?,
            Some(sandbox) => engine.admit_inside(&sandbox.admitted, request, tenancy.policy)?,
        };
        Ok::<_, Error>((admitted, inside))
    });
    let (admitted, inside) = reading.await??;
    // An execution inside a sandbox already belongs to the sandbox's tenant.
    let admitted = if inside.is_none() { admitted.for_tenant(caller.tenant.as_str()) } else { admitted };
    Ok(Job { admitted, inside, language, metadata, idempotency: None, detached: false, watched: false, hold })
}

/// Checks a request against its policy, as an execution would, without running it.
#[utoipa::path(
    post, path = "/v1/check", tag = "executions", request_body = schema::Request,
    responses((status = 200, description = "Findings of the policy", body = schema::Checked),
        (status = 422, description = "Invalid request", body = schema::Problem)))]
pub(crate) async fn check(
    State(world): State<Arc<World>>,
    Runner(caller): Runner,
    body: Whole,
) -> Result<Json<Value>, Error> {
    let Whole { bytes, hold } = body;
    let mut request = Request::parse(&bytes)?;
    drop(bytes);
    request.wait = None;
    let job = admit(&world, &caller, None, request, hold).await?;
    let Verdict { findings, refusal } = job.admitted.verdict();
    let status = if refusal.is_some() { "refused" } else { "passed" };
    Ok(Json(json!({"status": status, "error": refusal, "findings": findings})))
}

/// Refuses a tenant that has used up its CPU quota for the day.
pub(crate) async fn check_quota(world: &World, caller: &Caller) -> Result<(), Error> {
    let Some(seconds) = caller.quotas.cpu_seconds_per_day else { return Ok(()) };
    let now = Timestamp::now();
    let used = world.store.usage(&caller.tenant, now.day()).await?;
    if used.cpu_ms < seconds.saturating_mul(1_000) {
        return Ok(());
    }
    let left = now.day().next().start().millis() - now.millis();
    Err(Error::QuotaSpent { retry_after: left.unsigned_abs().div_ceil(1_000) })
}

/// Returns the idempotency key and a digest of the request. The same body in another sandbox is another
/// request.
fn idempotency(
    headers: &HeaderMap,
    inside: Option<&Used>,
    body: &[u8],
) -> Result<Option<Idempotency>, Error> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let key = value.to_str().unwrap_or_default().parse()?;
    let request = match inside {
        None => Digest::of(body),
        Some(sandbox) => Digest::of(&[sandbox.id.as_str().as_bytes(), body].concat()),
    };
    Ok(Some(Idempotency { key, request }))
}

/// Answers a repeated request from the execution of the first one.
async fn again(
    world: &Arc<World>,
    caller: &Caller,
    id: &ExecutionId,
    detached: bool,
    wants_events: bool,
) -> Result<Response, Error> {
    let mut response = match world.live.find(&caller.tenant, id) {
        _ if detached => accepted(id),
        Some(running) if wants_events => events::response(running, None),
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
            `\"wait\": false` or with events", body = schema::Result),
        (status = 404, description = "No such execution in this tenant", body = schema::Problem),
    )
)]
pub(crate) async fn show(
    State(world): State<Arc<World>>,
    Runner(caller): Runner,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let id = known_id(&id)?;
    match world.live.find(&caller.tenant, &id) {
        Some(running) if events::wanted(&headers) => {
            let place = world.streams.open(&caller.tenant)?;
            Ok(place.within(events::response(running, None)))
        }
        _ => stored(&world, &caller, &id, events::wanted(&headers)).await,
    }
}

/// Cancels a queued or running execution.
#[utoipa::path(
    delete, path = "/v1/executions/{id}", tag = "executions",
    params(("id" = String, Path, description = "Execution id")),
    responses(
        (status = 200, description = "The execution has ended; its result", body = schema::Result),
        (status = 404, description = "No such execution in this tenant", body = schema::Problem),
        (status = 409, description = "The execution had already ended", body = schema::Problem),
    )
)]
pub(crate) async fn cancel(
    State(world): State<Arc<World>>,
    Runner(caller): Runner,
    Path(id): Path<String>,
) -> Result<Response, Error> {
    let id = known_id(&id)?;
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
        (status = 200, description = "A page of executions", body = schema::ExecutionPage),
        (status = 422, description = "Invalid parameter", body = schema::Problem),
    )
)]
pub(crate) async fn list(
    State(world): State<Arc<World>>,
    Runner(caller): Runner,
    query: RawQuery,
) -> Result<Json<Page>, Error> {
    let query = Query::parse(query, &["status", "language", "metadata.", "limit", "cursor"])?;
    let filter = Filter {
        status: query.parsed::<Status>("status")?,
        language: query.get("language").map(canonical),
        metadata: query.below("metadata."),
    };
    let cursor = query.parsed::<ExecutionId>("cursor")?;
    let limit = query.parsed("limit")?.unwrap_or(PAGE);
    Ok(Json(world.store.executions(&caller.tenant, filter, cursor, limit).await?))
}

/// Maps a language alias to its canonical name.
fn canonical(language: &str) -> String {
    Language::named(language).map_or(language, |language| language.name).to_owned()
}

/// Parses an execution id. A malformed id is reported as an unknown one.
fn known_id(text: &str) -> Result<ExecutionId, Error> {
    text.parse().map_err(|_| Error::NotFound("execution"))
}

async fn stored(
    world: &World,
    caller: &Caller,
    id: &ExecutionId,
    wants_events: bool,
) -> Result<Response, Error> {
    let found: Option<Execution> = world.store.execution(&caller.tenant, id).await?;
    let json = Bytes::from(object::of(found.ok_or(Error::NotFound("execution"))?));
    Ok(if wants_events { events::only_result(&json) } else { result(json) })
}

fn result(json: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], Body::from(json)).into_response()
}

fn accepted(id: &ExecutionId) -> Response {
    let place = [(header::LOCATION, format!("/v1/executions/{id}"))];
    (StatusCode::ACCEPTED, place, Json(json!({"id": id, "status": "queued"}))).into_response()
}
