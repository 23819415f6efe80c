//! `/v1/sandboxes`: create, show, list, extend, pause, resume, end, and run code.

pub(super) mod archives;
pub(super) mod commands;
mod extract;
pub(super) mod files;
mod info;
pub(super) mod network;
mod output;
mod paths;
pub(super) mod ports;
pub(super) mod terminal;
pub(super) mod watch;

use std::sync::Arc;

use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::provider::DiscardSink;
use belljar_engine::report::Report;
use belljar_engine::request::Request;
use belljar_engine::sandbox::SandboxRequest;
use belljar_engine::sandbox_handle::SandboxPhase as Life;
use belljar_store::{SandboxFilter, SandboxId, SandboxRecord, SandboxState, TenantName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::info::{SandboxInfo, SandboxUsage};
use super::executions::{Accepted, run};
use super::schema;
use crate::app_state::AppState;
use crate::error::Error;
use crate::executions::check_quota;
use crate::http::body::{JsonBody, SortedJson, parse, parse_bytes};
use crate::http::callers::SandboxCaller;
use crate::http::query::Query;
use crate::sandboxes::end_cause::EndCause;
use crate::sandboxes::lifecycle;
use crate::sandboxes::live_sandbox::SandboxInUse;
use crate::uncancellable::run_uncancellable;

const DEFAULT_PAGE_SIZE: u32 = 50;

/// New timeout of a sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Extension")]
struct ExtensionBody {
    /// How long it may be unused, in milliseconds.
    #[schemars(range(min = 1))]
    timeout_ms: i64,
}

/// A page of sandboxes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SandboxPage")]
pub(crate) struct SandboxList {
    /// Sandboxes, newest first.
    sandboxes: Vec<SandboxInfo>,
    /// Cursor of the next page; null on the last page.
    next_cursor: Option<SandboxId>,
}

/// Creates a sandbox.
#[utoipa::path(
    post, path = "/v1/sandboxes", tag = "sandboxes", request_body = ref(schema::request::<SandboxRequest>()),
    responses(
        (status = 201, description = "The new sandbox, running", body = ref(schema::response::<SandboxInfo>())),
        (status = 429, description = "The maximum number of sandboxes is reached"),
    )
)]
pub(crate) async fn create(
    State(state): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    body: JsonBody,
) -> Result<Response, Error> {
    let JsonBody { bytes, reservation } = body;
    let request: SandboxRequest = parse_bytes(&bytes)?;
    drop(bytes);
    // Creating a sandbox may take as long as installing packages.
    let _request_hold = reservation.into_request()?;
    check_quota(&state, &caller).await?;
    let sandbox = lifecycle::open(&state, &caller, request, DiscardSink).await?;
    let location = [(header::LOCATION, format!("/v1/sandboxes/{}", sandbox.id))];
    Ok((StatusCode::CREATED, location, SortedJson(SandboxInfo::new(sandbox, None))).into_response())
}

/// Lists the tenant's sandboxes, newest first.
///
/// Ended ones are listed only with `state=ended`.
#[utoipa::path(
    get, path = "/v1/sandboxes", tag = "sandboxes",
    params(
        ("state" = Option<String>, Query,
            description = "Only this state: starting, running, halted, paused or ended"),
        ("metadata.KEY" = Option<String>, Query,
            description = "Only sandboxes with this value in their metadata; up to eight keys"),
        ("limit" = Option<u32>, Query, description = "Page size, 1 to 200; default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses(
        (status = 200, description = "A page of sandboxes", body = ref(schema::response::<SandboxList>())),
        (status = 422, description = "Invalid parameter"),
    )
)]
pub(crate) async fn list(
    State(state): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    query: RawQuery,
) -> Result<SortedJson<SandboxList>, Error> {
    let query = Query::parse(query, &["state", "metadata.", "limit", "cursor"])?;
    let state_filter: Option<SandboxState> = query.parsed("state")?;
    let filter = SandboxFilter {
        states: match state_filter {
            None => vec![SandboxState::Starting, SandboxState::Running, SandboxState::Paused],
            Some(SandboxState::Halted) => vec![SandboxState::Running],
            Some(state) => vec![state],
        },
        metadata: query.with_prefix("metadata."),
    };
    let cursor = query.parsed::<SandboxId>("cursor")?;
    let limit = query.parsed("limit")?.unwrap_or(DEFAULT_PAGE_SIZE);
    let page = state.store.sandboxes(&caller.tenant, filter, cursor, limit).await?;
    let sandboxes = page.sandboxes.into_iter().map(|sandbox| sandbox_info(&state, sandbox));
    // A sandbox may have been halted or paused since it was recorded.
    let sandboxes = sandboxes.filter(|info| state_filter.is_none_or(|state| info.state() == state)).collect();
    Ok(SortedJson(SandboxList { sandboxes, next_cursor: page.next_cursor }))
}

/// Returns a sandbox, including one that has ended.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}", tag = "sandboxes",
    params(("id" = String, Path, description = "Sandbox id")),
    responses(
        (status = 200, description = "The sandbox", body = ref(schema::response::<SandboxInfo>())),
        (status = 404, description = "No such sandbox in this tenant"),
    )
)]
pub(crate) async fn show(
    State(state): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    Path(id): Path<String>,
) -> Result<SortedJson<SandboxInfo>, Error> {
    stored_info(&state, &caller.tenant, &lifecycle::parse_id(&id)?).await
}

/// Ends a sandbox and everything in it.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}", tag = "sandboxes",
    params(("id" = String, Path, description = "Sandbox id")),
    responses(
        (status = 200, description = "The sandbox has ended, and its processes and files are gone",
            body = ref(schema::response::<SandboxInfo>())),
        (status = 404, description = "No such sandbox in this tenant"),
        (status = 410, description = "The sandbox had already ended"),
    )
)]
pub(crate) async fn close(
    State(state): State<Arc<AppState>>,
    used: SandboxInUse,
) -> Result<SortedJson<SandboxInfo>, Error> {
    if !lifecycle::end(&state, used.sandbox(), EndCause::closed()).await {
        return Err(used.ended_error());
    }
    stored_info(&state, &used.tenant, &used.id).await
}

/// Sets how long a sandbox may be unused, counted from now.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/extend", tag = "sandboxes",
    params(("id" = String, Path, description = "Sandbox id")),
    request_body = ref(schema::request::<ExtensionBody>()),
    responses(
        (status = 200, description = "The extended sandbox", body = ref(schema::response::<SandboxInfo>())),
        (status = 404, description = "No such sandbox in this tenant"),
        (status = 409, description = "The sandbox is paused"),
        (status = 422, description = "The timeout is longer than what is left of its life"),
    )
)]
pub(crate) async fn extend(
    State(state): State<Arc<AppState>>,
    used: SandboxInUse,
    body: JsonBody,
) -> Result<SortedJson<SandboxInfo>, Error> {
    let extension: ExtensionBody = parse(body)?;
    let timeout = state.engine.admit_timeout(extension.timeout_ms)?;
    change_state(&state, used, lifecycle::StateChange::Extend(timeout)).await
}

/// Pauses a sandbox: freezes all its processes until it is resumed.
///
/// A paused sandbox does not expire for lack of use, but at the end of its life.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/pause", tag = "sandboxes",
    params(("id" = String, Path, description = "Sandbox id")),
    responses(
        (status = 200, description = "The paused sandbox", body = ref(schema::response::<SandboxInfo>())),
        (status = 404, description = "No such sandbox in this tenant"),
        (status = 422, description = "This host cannot pause sandboxes"),
    )
)]
pub(crate) async fn pause(
    State(state): State<Arc<AppState>>,
    used: SandboxInUse,
) -> Result<SortedJson<SandboxInfo>, Error> {
    change_state(&state, used, lifecycle::StateChange::Pause).await
}

/// Resumes a paused sandbox.
///
/// Its timeout counts again from now.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/resume", tag = "sandboxes",
    params(("id" = String, Path, description = "Sandbox id")),
    responses(
        (status = 200, description = "The resumed sandbox", body = ref(schema::response::<SandboxInfo>())),
        (status = 404, description = "No such sandbox in this tenant"),
    )
)]
pub(crate) async fn resume(
    State(state): State<Arc<AppState>>,
    used: SandboxInUse,
) -> Result<SortedJson<SandboxInfo>, Error> {
    change_state(&state, used, lifecycle::StateChange::Resume).await
}

/// Returns the current resource use of a sandbox, running or paused.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/stats", tag = "sandboxes",
    params(("id" = String, Path, description = "Sandbox id")),
    responses(
        (status = 200, description = "Resource use, measured from outside; null if not measurable here",
            body = ref(schema::response::<SandboxUsage>())),
        (status = 404, description = "No such sandbox in this tenant"),
    )
)]
pub(crate) async fn stats(used: SandboxInUse) -> Result<SortedJson<SandboxUsage>, Error> {
    let stats = used.living.stats().await?;
    let output = match used.living.state() {
        Life::Running => {
            let commands = used.living.commands().list().await?;
            Some(commands.iter().map(|command| command.output_bytes).sum::<u64>())
        }
        Life::Paused | Life::Ended => None,
    };
    let findings = used.living.denial_findings().await?;
    Ok(SortedJson(SandboxUsage::new(&stats, output, findings)))
}

/// Runs code or a command in a sandbox, with access to its files.
///
/// Executions of one sandbox run one at a time.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/executions", tag = "sandboxes", request_body = ref(schema::request::<Request>()),
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("Idempotency-Key" = Option<String>, Header,
            description = "Repeating the same request with the same key runs it only once"),
    ),
    responses(
        (status = 200, description = "The result of the program, as with `/v1/executions`",
            body = ref(schema::response::<Report>())),
        (status = 202, description = "Queued: the answer to `\"wait\": false`", body = ref(schema::response::<Accepted>())),
    )
)]
pub(crate) async fn execute(
    State(state): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, Error> {
    let used = lifecycle::find(&state, &caller, &id).await?;
    run(&state, &caller, Some(used), &headers, body).await
}

/// Changes the state of a sandbox. Completes even if the client disconnects, because a
/// resumed sandbox must expire again.
async fn change_state(
    state: &Arc<AppState>,
    used: SandboxInUse,
    step: lifecycle::StateChange,
) -> Result<SortedJson<SandboxInfo>, Error> {
    let (taken, used) = (Arc::clone(state), Arc::new(used));
    let stepping = Arc::clone(&used);
    run_uncancellable(async move { step.apply(&taken, &stepping).await }).await?;
    stored_info(state, &used.tenant, &used.id).await
}

async fn stored_info(
    state: &AppState,
    tenant: &TenantName,
    id: &SandboxId,
) -> Result<SortedJson<SandboxInfo>, Error> {
    let sandbox = state.store.sandbox(tenant, id).await?.ok_or(Error::NotFound("sandbox"))?;
    Ok(SortedJson(sandbox_info(state, sandbox)))
}

fn sandbox_info(state: &AppState, sandbox: SandboxRecord) -> SandboxInfo {
    let open = state.sandboxes.find(&sandbox.tenant, &sandbox.id);
    SandboxInfo::new(sandbox, open.as_deref())
}
