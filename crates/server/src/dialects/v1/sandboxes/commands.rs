//! Handlers for commands of a sandbox: start, show, list, write to, signal, resize.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::report::{CommandReport, EndedCommand, command_report};
use belljar_engine::sandbox::{
    CommandRequest, SignalSpec, TerminalSizeSpec, admit_signal, admit_terminal_size,
};
use http_body_util::BodyExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::output::{CommandEvents, OutputPage};
use crate::app_state::AppState;
use crate::dialects::v1::schema;
use crate::error::Error;
use crate::http::body::{JsonBody, SortedJson, check_type, parse, parse_bytes};
use crate::http::callers::SandboxCaller;
use crate::http::events;
use crate::http::query::Query;
use crate::sandboxes::command_process::CommandInProgress;
use crate::sandboxes::command_reader::{self, CommandReader};
use crate::sandboxes::lifecycle;
use crate::sandboxes::live_sandbox::SandboxInUse;

/// A signal to send.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CommandSignal")]
struct SignalBody {
    /// Name or number of the signal: `SIGINT`, `INT` or 2.
    #[schemars(example = &"SIGINT")]
    signal: SignalSpec,
}

/// Commands of a sandbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CommandList {
    /// Commands, oldest first.
    commands: Vec<CommandReport>,
}

/// Starts a command, and waits for its end unless it runs in the background.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/commands", tag = "commands",
    params(("id" = String, Path, description = "Sandbox id")),
    request_body = ref(schema::request::<CommandRequest>()),
    responses(
        (status = 200, description = "The command has ended; its output. With `Accept: text/event-stream`, \
            events: `started`, its output while it runs (`output`, `lost`), then `ended`. If the client \
            disconnects, the command is killed", body = ref(schema::response::<EndedCommand>())),
        (status = 201, description = "The running command: the answer to `\"background\": true`",
            body = ref(schema::response::<CommandReport>())),
        (status = 403, description = "Refused by a policy: code `refused`, with findings"),
        (status = 409, description = "The sandbox is paused"),
        (status = 410, description = "The sandbox has ended"),
        (status = "4XX", description = "The request was refused"),
    )
)]
pub(crate) async fn start_command(
    State(state): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, Error> {
    let used = lifecycle::find(&state, &caller, &id).await?;
    let slot =
        if events::accepts_events(&headers) { Some(state.streams.open(&caller.tenant)?) } else { None };
    let bound = used.admitted.plan.limits.output_bytes;
    let JsonBody { bytes, reservation } = body;
    let command: CommandRequest = parse_bytes(&bytes)?;
    drop(bytes);
    let started = CommandInProgress::start(&state, &caller, used, command, reservation).await?;
    if started.background {
        let command = started.detach();
        let location = [(header::LOCATION, format!("/v1/sandboxes/{id}/commands/{}", command.id))];
        return Ok((StatusCode::CREATED, location, Json(command)).into_response());
    }
    if let Some(slot) = slot {
        return Ok(slot.hold_during(events::event_stream(CommandEvents::started(started))));
    }
    Ok(Json(started.wait(bound).await?).into_response())
}

/// Lists the commands of a sandbox that run or recently ended, oldest first.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/commands", tag = "commands",
    params(("id" = String, Path, description = "Sandbox id")),
    responses(
        (status = 200, description = "The commands of the sandbox", body = ref(schema::response::<CommandList>())),
        (status = 404, description = "No such sandbox in this tenant"),
    )
)]
pub(crate) async fn list_commands(used: SandboxInUse) -> Result<SortedJson<CommandList>, Error> {
    let commands = used.living.commands().list().await?;
    Ok(SortedJson(CommandList { commands: commands.into_iter().map(command_report).collect() }))
}

/// Returns a command and its state.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/commands/{number}", tag = "commands",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("number" = u64, Path, description = "Number of the command"),
    ),
    responses(
        (status = 200, description = "The command", body = ref(schema::response::<CommandReport>())),
        (status = 404, description = "No such sandbox or command"),
    )
)]
pub(crate) async fn show_command(
    used: SandboxInUse,
    Path((_, number)): Path<(String, String)>,
) -> Result<Json<CommandReport>, Error> {
    let info = command_reader::command_info(&used, &number).await?;
    let findings = used.living.commands().denial_findings(&info).await?;
    Ok(Json(CommandReport { findings, ..command_report(info) }))
}

/// Returns stored output of a command; with `Accept: text/event-stream`, also its future output.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/commands/{number}/output", tag = "commands",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("number" = u64, Path, description = "Number of the command"),
        ("from" = Option<u64>, Query,
            description = "Offset of the first byte, counted over both streams; default 0"),
        ("follow" = Option<bool>, Query,
            description = "With events: whether to follow the output until the command ends; default true"),
    ),
    responses(
        (status = 200, description = "About `limits.output_bytes` bytes, or events: `output`, `lost`, `ended`",
            body = ref(schema::response::<OutputPage>())),
        (status = 404, description = "No such sandbox or command"),
        (status = 422, description = "The offset is beyond the end of the output"),
    )
)]
pub(crate) async fn command_output(
    State(state): State<Arc<AppState>>,
    used: SandboxInUse,
    Path((_, number)): Path<(String, String)>,
    query: RawQuery,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let query = Query::parse(query, &["from", "follow"])?;
    let follow = query.parsed("follow")?.unwrap_or(true);
    let bound = used.admitted.plan.limits.output_bytes;
    let slot = if events::accepts_events(&headers) { Some(state.streams.open(&used.tenant)?) } else { None };
    let reader = CommandReader::attach(used, &number, query.parsed("from")?.unwrap_or(0)).await?;
    if let Some(slot) = slot {
        return Ok(slot.hold_during(events::event_stream(CommandEvents::watched(reader, follow))));
    }
    Ok(Json(OutputPage::read(reader, bound).await?).into_response())
}

/// Writes to a command's standard input.
///
/// Responds once everything is in the pipe.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/commands/{number}/stdin", tag = "commands",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("number" = u64, Path, description = "Number of the command"),
        ("close" = Option<bool>, Query,
            description = "Whether to close standard input after the body; default false"),
    ),
    request_body(content = ref(schema::request::<schema::Bytes>()), content_type = "application/octet-stream",
        description = "Bytes to write"),
    responses(
        (status = 204, description = "The input is written"),
        (status = 404, description = "No such sandbox or command"),
        (status = 409, description = "Standard input is closed"),
    )
)]
pub(crate) async fn write_stdin(
    State(state): State<Arc<AppState>>,
    used: SandboxInUse,
    Path((_, number)): Path<(String, String)>,
    query: RawQuery,
    request: Request,
) -> Result<StatusCode, Error> {
    let close = Query::parse(query, &["close"])?.parsed("close")?.unwrap_or(false);
    check_type(request.headers(), &["octet-stream"])?;
    let (command, commands) =
        (command_reader::command_info(&used, &number).await?.id, used.living.commands());
    let mut body = request.into_body();
    // Chunk by chunk: a body of any length, in constant memory.
    while let Some(frame) =
        timeout(state.settings.body_timeout, body.frame()).await.map_err(|_| Error::SlowBody)?
    {
        if let Ok(bytes) = frame.map_err(|_| Error::SlowBody)?.into_data() {
            commands.write_stdin(command, &bytes).await?;
        }
    }
    if close {
        commands.close_stdin(command).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Sends a signal to a command's process group.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/commands/{number}/signal", tag = "commands",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("number" = u64, Path, description = "Number of the command"),
    ),
        request_body = ref(schema::request::<SignalBody>()),
    responses(
        (status = 204, description = "The signal is sent"),
        (status = 404, description = "No such sandbox or command"),
        (status = 409, description = "The command has ended"),
        (status = 422, description = "No such signal"),
    )
)]
pub(crate) async fn signal_command(
    used: SandboxInUse,
    Path((_, number)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, Error> {
    let signal: SignalBody = parse(body)?;
    let command = command_reader::command_info(&used, &number).await?.id;
    used.living.commands().signal(command, admit_signal(&signal.signal)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Resizes a command's terminal.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/commands/{number}/resize", tag = "commands",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("number" = u64, Path, description = "Number of the command"),
    ),
        request_body = ref(schema::request::<TerminalSizeSpec>()),
    responses(
        (status = 204, description = "The terminal is resized"),
        (status = 404, description = "No such sandbox or command"),
        (status = 422, description = "The command has no terminal"),
    )
)]
pub(crate) async fn resize_terminal(
    used: SandboxInUse,
    Path((_, number)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, Error> {
    let size: TerminalSizeSpec = parse(body)?;
    let command = command_reader::command_info(&used, &number).await?.id;
    used.living.commands().resize(command, admit_terminal_size(size)?).await?;
    Ok(StatusCode::NO_CONTENT)
}
