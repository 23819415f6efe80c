//! Commands of a sandbox: start, look, list, write to, signal, resize.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::report::CommandReport;
use belljar_engine::sandbox::{SignalSpec, SizeSpec};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::foreground::Started;
use super::look::{self, Look};
use super::output::{Page, Telling};
use super::{life, open::Used};
use crate::accounts::Keeper;
use crate::body::{Whole, check_type, parse, parse_bytes};
use crate::error::Error;
use crate::query::Query;
use crate::world::World;
use crate::{events, executions, schema};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signal {
    signal: SignalSpec,
}

/// Starts a command, and waits for its end unless it goes on in the background.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/commands", tag = "commands", params(("id" = String, Path)),
    request_body = schema::NewCommand,
    responses(
        (status = 200, description = "It has ended; with `Accept: text/event-stream` `started`, its output as it comes \
            (`output`, `lost`) and then that (`ended`). A client that goes away kills it", body = schema::EndedCommand),
        (status = 201, description = "With `\"background\": true`: it runs", body = schema::Command),
        (status = 403, description = "A policy does not let it run: `refused`, with what it minds", body = schema::Problem),
        (status = 409, description = "The sandbox is paused", body = schema::Problem),
        (status = 410, description = "The sandbox has ended", body = schema::Problem),
        (status = "4XX", description = "Something about the request", body = schema::Problem),
    )
)]
pub(crate) async fn start_command(
    State(world): State<Arc<World>>,
    Keeper(caller): Keeper,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Whole,
) -> Result<Response, Error> {
    let used = life::find(&world, &caller, &id).await?;
    let place = if events::wanted(&headers) { Some(world.streams.open(&caller.tenant)?) } else { None };
    let bound = used.admitted.plan.limits.output_bytes;
    let Whole { bytes, hold } = body;
    let (engine, floor, wanted) = (Arc::clone(&world.engine), caller.policy.clone(), parse_bytes(&bytes)?);
    drop(bytes);
    let hold = hold.parsed()?;
    let reading = world.readers.read(&caller.tenant, move || {
        let command = engine.admit_command(&used.admitted, wanted, floor.as_deref())?;
        Ok::<_, Error>((used, command))
    });
    let (used, command) = reading.await??;
    let background = command.background;
    executions::check_quota(&world, &caller).await?;
    let started = Started::new(&world, used, command, hold).await?;
    if background {
        let command = started.let_go();
        let place = [(header::LOCATION, format!("/v1/sandboxes/{id}/commands/{}", command.id))];
        return Ok((StatusCode::CREATED, place, Json(command)).into_response());
    }
    if let Some(place) = place {
        return Ok(place.within(events::told_by(Telling::started(started))));
    }
    Ok(Json(started.whole(bound).await?).into_response())
}

/// The commands of a sandbox that run or are remembered, oldest first.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/commands", tag = "commands", params(("id" = String, Path)),
    responses(
        (status = 200, description = "All of them", body = schema::CommandList),
        (status = 404, description = "There is none, or it is another tenant's", body = schema::Problem),
    )
)]
pub(crate) async fn list_commands(used: Used) -> Result<Json<Value>, Error> {
    let commands = used.living.commands().list().await?;
    let commands: Vec<CommandReport> = commands.into_iter().map(CommandReport::from).collect();
    Ok(Json(json!({"commands": commands})))
}

/// One command: how it stands.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/commands/{number}", tag = "commands",
    params(("id" = String, Path), ("number" = u64, Path)),
    responses(
        (status = 200, description = "It", body = schema::Command),
        (status = 404, description = "There is none, or it is another tenant's", body = schema::Problem),
    )
)]
pub(crate) async fn show_command(
    used: Used,
    Path((_, number)): Path<(String, String)>,
) -> Result<Json<CommandReport>, Error> {
    let info = look::info(&used, &number).await?;
    let findings = used.living.commands().kept_from(&info).await?;
    Ok(Json(CommandReport { findings, ..info.into() }))
}

/// What a command has written and is kept, and with `Accept: text/event-stream` what it will write.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/commands/{number}/output", tag = "commands",
    params(
        ("id" = String, Path), ("number" = u64, Path),
        ("from" = Option<u64>, Query, description = "The first byte, counted over both streams; 0 unless said otherwise"),
        ("follow" = Option<bool>, Query, description = "As events: whether to wait for its end; true unless said otherwise"),
    ),
    responses(
        (status = 200, description = "A page of about `limits.output_bytes`, or events: `output`, `lost`, `ended`",
            body = schema::CommandOutput),
        (status = 404, description = "There is none, or it is another tenant's", body = schema::Problem),
        (status = 422, description = "It has not written that much", body = schema::Problem),
    )
)]
pub(crate) async fn command_output(
    State(world): State<Arc<World>>,
    used: Used,
    Path((_, number)): Path<(String, String)>,
    query: RawQuery,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let query = Query::parse(query, &["from", "follow"])?;
    let follow = query.parsed("follow")?.unwrap_or(true);
    let bound = used.admitted.plan.limits.output_bytes;
    let place = if events::wanted(&headers) { Some(world.streams.open(&used.tenant)?) } else { None };
    let look = Look::at(used, &number, query.parsed("from")?.unwrap_or(0)).await?;
    if let Some(place) = place {
        return Ok(place.within(events::told_by(Telling::watched(look, follow))));
    }
    Ok(Json(Page::read(look, bound).await?).into_response())
}

/// Writes to a command's standard input; answered when it is in its pipe.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/commands/{number}/stdin", tag = "commands",
    params(
        ("id" = String, Path), ("number" = u64, Path),
        ("close" = Option<bool>, Query, description = "Whether there is no more; false unless said otherwise"),
    ),
    request_body(content = schema::Bytes, content_type = "application/octet-stream"),
    responses(
        (status = 204, description = "It is written"),
        (status = 404, description = "There is none, or it is another tenant's", body = schema::Problem),
        (status = 409, description = "Its input is closed", body = schema::Problem),
    )
)]
pub(crate) async fn write_stdin(
    State(world): State<Arc<World>>,
    used: Used,
    Path((_, number)): Path<(String, String)>,
    query: RawQuery,
    request: Request,
) -> Result<StatusCode, Error> {
    let close = Query::parse(query, &["close"])?.parsed("close")?.unwrap_or(false);
    check_type(request.headers(), &["octet-stream"])?;
    let (command, commands) = (look::info(&used, &number).await?.id, used.living.commands());
    let mut body = request.into_body();
    // Piece by piece: as long as one likes, in constant memory.
    while let Some(frame) =
        timeout(world.settings.body_timeout, body.frame()).await.map_err(|_| Error::SlowBody)?
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
    params(("id" = String, Path), ("number" = u64, Path)), request_body = schema::CommandSignal,
    responses(
        (status = 204, description = "It is sent"),
        (status = 404, description = "There is none, or it is another tenant's", body = schema::Problem),
        (status = 409, description = "It has ended", body = schema::Problem),
        (status = 422, description = "There is no such signal", body = schema::Problem),
    )
)]
pub(crate) async fn signal_command(
    used: Used,
    Path((_, number)): Path<(String, String)>,
    body: Whole,
) -> Result<StatusCode, Error> {
    let signal: Signal = parse(body)?;
    let command = look::info(&used, &number).await?.id;
    used.living.commands().signal(command, signal.signal.admit()?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sets the size of a command's terminal.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/commands/{number}/resize", tag = "commands",
    params(("id" = String, Path), ("number" = u64, Path)), request_body = schema::TerminalSize,
    responses(
        (status = 204, description = "It is set"),
        (status = 404, description = "There is none, or it is another tenant's", body = schema::Problem),
        (status = 422, description = "It has no terminal", body = schema::Problem),
    )
)]
pub(crate) async fn resize_terminal(
    used: Used,
    Path((_, number)): Path<(String, String)>,
    body: Whole,
) -> Result<StatusCode, Error> {
    let size: SizeSpec = parse(body)?;
    let command = look::info(&used, &number).await?.id;
    used.living.commands().resize(command, size.admit()?).await?;
    Ok(StatusCode::NO_CONTENT)
}
