//! The sandboxes themselves: open, look, list, extend, pause, resume, end, and run code in one.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::living::State as Life;
use belljar_engine::provider::Blind;
use belljar_engine::sandbox::SandboxRequest;
use belljar_store::{Sandbox, SandboxEnd, SandboxFilter, SandboxId, SandboxState, TenantName};
use serde::Deserialize;
use serde_json::{Value, json};

use super::open::Used;
use super::{life, object};
use crate::accounts::Keeper;
use crate::body::{Whole, parse, parse_bytes};
use crate::errand::to_the_end;
use crate::error::Error;
use crate::executions;
use crate::query::Query;
use crate::schema;
use crate::world::World;

const PAGE: u32 = 50;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Extension {
    timeout_ms: i64,
}

/// Opens a sandbox.
#[utoipa::path(
    post, path = "/v1/sandboxes", tag = "sandboxes", request_body = schema::NewSandbox,
    responses(
        (status = 201, description = "It runs", body = schema::Sandbox),
        (status = 429, description = "There are as many as there may be", body = schema::Problem),
    )
)]
pub(crate) async fn create(
    State(world): State<Arc<World>>,
    Keeper(caller): Keeper,
    body: Whole,
) -> Result<Response, Error> {
    let Whole { bytes, hold } = body;
    let request: SandboxRequest = parse_bytes(&bytes)?;
    drop(bytes);
    // Opening may take as long as installing packages does.
    let _request_hold = hold.parsed()?;
    executions::check_quota(&world, &caller).await?;
    let sandbox = life::open(&world, &caller, request, Blind).await?;
    let place = [(header::LOCATION, format!("/v1/sandboxes/{}", sandbox.id))];
    Ok((StatusCode::CREATED, place, Json(object::sandbox(sandbox, None))).into_response())
}

/// The tenant's sandboxes, newest first; those that have ended only where they are asked for.
#[utoipa::path(
    get, path = "/v1/sandboxes", tag = "sandboxes",
    params(
        ("state" = Option<String>, Query, description = "starting, running, paused or ended"),
        ("metadata.KEY" = Option<String>, Query, description = "With this value in their metadata; up to eight of them"),
        ("limit" = Option<u32>, Query, description = "From 1 to 200; 50 unless said otherwise"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "A page", body = schema::SandboxPage),
        (status = 422, description = "A parameter is wrong", body = schema::Problem),
    )
)]
pub(crate) async fn list(
    State(world): State<Arc<World>>,
    Keeper(caller): Keeper,
    query: RawQuery,
) -> Result<Json<Value>, Error> {
    let query = Query::parse(query, &["state", "metadata.", "limit", "cursor"])?;
    let alive = vec![SandboxState::Starting, SandboxState::Running, SandboxState::Paused];
    let filter = SandboxFilter {
        states: query.parsed("state")?.map_or(alive, |state| vec![state]),
        metadata: query.below("metadata."),
    };
    let cursor = query.parsed::<SandboxId>("cursor")?;
    let limit = query.parsed("limit")?.unwrap_or(PAGE);
    let page = world.store.sandboxes(&caller.tenant, filter, cursor, limit).await?;
    let shown: Vec<_> = page.sandboxes.into_iter().map(|sandbox| show_one(&world, sandbox)).collect();
    Ok(Json(json!({"sandboxes": shown, "next_cursor": page.next_cursor})))
}

/// One sandbox, also when it has ended.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, description = "It", body = schema::Sandbox),
        (status = 404, description = "There is none, or it is another tenant's", body = schema::Problem),
    )
)]
pub(crate) async fn show(
    State(world): State<Arc<World>>,
    Keeper(caller): Keeper,
    Path(id): Path<String>,
) -> Result<Json<Value>, Error> {
    recorded(&world, &caller.tenant, &life::known_id(&id)?).await
}

/// Ends a sandbox, and everything in it.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, description = "It has ended, and nothing of it is left", body = schema::Sandbox),
        (status = 404, description = "There is none, or it is another tenant's", body = schema::Problem),
        (status = 410, description = "It had ended before", body = schema::Problem),
    )
)]
pub(crate) async fn close(State(world): State<Arc<World>>, used: Used) -> Result<Json<Value>, Error> {
    if !life::end(&world, used.open(), SandboxEnd::Closed).await {
        return Err(Error::SandboxEnded);
    }
    recorded(&world, &used.tenant, &used.id).await
}

/// Lets a sandbox live for so long from now on.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/extend", tag = "sandboxes", params(("id" = String, Path)),
    request_body = schema::Extension,
    responses(
        (status = 200, description = "As it is now", body = schema::Sandbox),
        (status = 404, description = "There is none, or it is another tenant's", body = schema::Problem),
        (status = 409, description = "It is paused", body = schema::Problem),
        (status = 422, description = "That is too long", body = schema::Problem),
    )
)]
pub(crate) async fn extend(
    State(world): State<Arc<World>>,
    used: Used,
    body: Whole,
) -> Result<Json<Value>, Error> {
    let extension: Extension = parse(body)?;
    let timeout = world.engine.admit_timeout(extension.timeout_ms)?;
    step(&world, used, life::Step::Extend(timeout)).await
}

/// Has nothing in a sandbox run any more, until it is resumed. Its time stands still.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/pause", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, description = "As it is now", body = schema::Sandbox),
        (status = 404, description = "There is none, or it is another tenant's", body = schema::Problem),
        (status = 422, description = "Nothing can be paused on this host", body = schema::Problem),
    )
)]
pub(crate) async fn pause(State(world): State<Arc<World>>, used: Used) -> Result<Json<Value>, Error> {
    step(&world, used, life::Step::Pause).await
}

/// Lets a paused sandbox go on, with the time that it was last given from the beginning.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/resume", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, description = "As it is now", body = schema::Sandbox),
        (status = 404, description = "There is none, or it is another tenant's", body = schema::Problem),
    )
)]
pub(crate) async fn resume(State(world): State<Arc<World>>, used: Used) -> Result<Json<Value>, Error> {
    step(&world, used, life::Step::Resume).await
}

/// What a sandbox uses now, paused or not.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/stats", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, description = "Counted from outside; null where this host does not keep it", body = schema::Stats),
        (status = 404, description = "There is none, or it is another tenant's", body = schema::Problem),
    )
)]
pub(crate) async fn stats(used: Used) -> Result<Json<Value>, Error> {
    let stats = used.living.stats().await?;
    let output = match used.living.state() {
        Life::Running => {
            let commands = used.living.commands().list().await?;
            Some(commands.iter().map(|command| command.output_bytes).sum::<u64>())
        }
        Life::Paused | Life::Ended => None,
    };
    let findings = used.living.kept_from().await?;
    Ok(Json(object::stats(&stats, output, &findings)))
}

/// Runs a piece of code or a program in a sandbox, whose files it finds and leaves; one after the other.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/executions", tag = "sandboxes", request_body = schema::Request,
    params(
        ("id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "The same request with the same key is run once"),
    ),
    responses(
        (status = 200, description = "What the program did, as with `/v1/executions`", body = schema::Result),
        (status = 202, description = "With `\"wait\": false`: it will run", body = schema::Accepted),
    )
)]
pub(crate) async fn execute(
    State(world): State<Arc<World>>,
    Keeper(caller): Keeper,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Whole,
) -> Result<Response, Error> {
    let used = life::find(&world, &caller, &id).await?;
    executions::run(&world, &caller, Some(used), &headers, body).await
}

/// To its end, whoever hangs up: what goes on again has its time again.
async fn step(world: &Arc<World>, used: Used, step: life::Step) -> Result<Json<Value>, Error> {
    let (taken, used) = (Arc::clone(world), Arc::new(used));
    let stepping = Arc::clone(&used);
    to_the_end(async move { step.take(&taken, &stepping).await }).await?;
    recorded(world, &used.tenant, &used.id).await
}

async fn recorded(world: &World, tenant: &TenantName, id: &SandboxId) -> Result<Json<Value>, Error> {
    let sandbox = world.store.sandbox(tenant, id).await?.ok_or(Error::NotFound("sandbox"))?;
    Ok(Json(show_one(world, sandbox)))
}

fn show_one(world: &World, sandbox: Sandbox) -> Value {
    let open = world.sandboxes.find(&sandbox.tenant, &sandbox.id);
    object::sandbox(sandbox, open.as_deref())
}
