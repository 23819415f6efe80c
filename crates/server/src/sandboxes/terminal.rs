//! A terminal over a WebSocket. Any number of clients may attach, each from its own offset. Closing a
//! connection does not affect the command.
//!
//! ```text
//! out: {"attached":{"offset"}} · bytes … {"lost":{"offset","bytes"}} … · {"ended":Command} or {"error":{…}} · close
//! in:  bytes or text: input · {"resize":{"rows","columns"}}
//! ```

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use belljar_engine::living::{OutputEvent, ProcessId};
use belljar_engine::sandbox::SizeSpec;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::look::Look;
use super::open::{Open, Used};
use crate::error::Error;
use crate::query::Query;
use crate::world::World;
use crate::{events, schema};

/// Maximum length of a client's message in bytes.
const MESSAGE: usize = 64 << 10;
/// Timeout of the closing handshake.
const FAREWELL: Duration = Duration::from_secs(2);

type Sink = SplitSink<WebSocket, Message>;

/// A control message of the client.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Control {
    resize: SizeSpec,
}

/// Attaches to a command's terminal over a WebSocket.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/commands/{number}/terminal", tag = "commands",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("number" = u64, Path, description = "Number of the command"),
        ("from" = Option<u64>, Query, description = "Offset of the first byte of output to send; default 0"),
    ),
    responses(
        (status = 101, description = "Server to client: binary messages are output; text messages are \
            JSON: first `{\"attached\":{\"offset\"}}`, `{\"lost\":{\"offset\",\"bytes\"}}` if output is no \
            longer stored, last `{\"ended\":Command}`. Client to server: binary messages are input; \
            `{\"resize\":{\"rows\",\"columns\"}}` resizes the terminal; any other text message is input"),
        (status = 404, description = "No such sandbox or command", body = schema::Problem),
        (status = 422, description = "The command has no terminal, or this is not a WebSocket request",
            body = schema::Problem),
    )
)]
pub(crate) async fn terminal(
    State(world): State<Arc<World>>,
    used: Used,
    Path((_, number)): Path<(String, String)>,
    query: RawQuery,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Error> {
    let from = Query::parse(query, &["from"])?.parsed("from")?.unwrap_or(0);
    let place = world.streams.open(&used.tenant)?;
    let look = Look::at(used, &number, from).await?;
    let refused = |field, message: &str| Error::Invalid { field, message: message.to_owned() };
    if !look.info().terminal {
        return Err(refused("command", "the command has no terminal; read its output instead"));
    }
    let upgrade = upgrade.map_err(|_| refused("upgrade", "this is not a WebSocket request"))?;
    let upgrade = upgrade.max_message_size(MESSAGE).max_frame_size(MESSAGE);
    Ok(upgrade.on_upgrade(async move |socket| {
        let _place = place;
        serve(world, look, socket).await;
    }))
}

async fn serve(world: Arc<World>, mut look: Look, socket: WebSocket) {
    let (mut sink, mut source) = socket.split();
    let (open, command) = (Arc::clone(look.open()), look.info().id);
    let silence = world.settings.terminal_silence;
    let last = tokio::select! {
        last = listen(&open, command, &mut source, silence) => last,
        last = show(&world, &mut look, &mut sink) => last.ok(),
    };
    let farewell = async {
        if let Some(last) = last {
            let _gone = sink.send(Message::Close(Some(last))).await;
        }
        // Drain incoming messages: closing with unread data would reset the connection and lose what was
        // sent.
        while let Some(Ok(_)) = source.next().await {}
    };
    let _late = timeout(FAREWELL, farewell).await;
}

/// Sends output until the end, and returns the reason for closing.
async fn show(world: &World, look: &mut Look, sink: &mut Sink) -> Result<CloseFrame, axum::Error> {
    say(sink, json!({"attached": {"offset": look.offset()}})).await?;
    let mut ping = interval(world.settings.terminal_silence / 4);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let came = tokio::select! {
            biased;
            () = world.live.closing() => return Ok(farewell(close_code::AWAY, &Error::ShuttingDown)),
            _ = ping.tick() => {
                sink.send(Message::Ping(Default::default())).await?;
                continue;
            }
            came = look.next() => came,
        };
        match came {
            Ok(Some(OutputEvent::Bytes { bytes, .. })) => sink.send(Message::Binary(bytes.into())).await?,
            Ok(Some(OutputEvent::Lost { offset, bytes })) => {
                say(sink, json!({"lost": {"offset": offset, "bytes": bytes}})).await?;
            }
            Ok(Some(OutputEvent::Ended { .. }) | None) => {
                say(sink, json!({"ended": look.report()})).await?;
                return Ok(CloseFrame { code: close_code::NORMAL, reason: "ended".into() });
            }
            Err(error) => {
                sink.send(Message::Text(events::problem(&error).into())).await?;
                return Ok(farewell(close_code::AWAY, &error));
            }
        }
    }
}

async fn say(sink: &mut Sink, control: Value) -> Result<(), axum::Error> {
    sink.send(Message::Text(control.to_string().into())).await
}

fn farewell(code: u16, error: &Error) -> CloseFrame {
    CloseFrame { code, reason: error.code().word().into() }
}

/// Reads input until the client disconnects, is silent for too long or sends an invalid message. While the
/// program does not read its input, the silence timeout is suspended, because nothing is read from the client
/// then.
async fn listen(
    open: &Open,
    command: ProcessId,
    source: &mut SplitStream<WebSocket>,
    silence: Duration,
) -> Option<CloseFrame> {
    loop {
        let Ok(Some(Ok(message))) = timeout(silence, source.next()).await else { return None };
        match message {
            Message::Binary(bytes) => input(open, command, &bytes).await,
            Message::Text(text) => match serde_json::from_str::<Control>(&text) {
                Ok(Control { resize }) => {
                    let Ok(size) = resize.admit() else {
                        return Some(CloseFrame { code: close_code::POLICY, reason: "resize".into() });
                    };
                    // Fails if the command has ended, which is fine.
                    let _resized = open.when_awake(|| open.living.commands().resize(command, size)).await;
                }
                Err(_) => input(open, command, text.as_bytes()).await,
            },
            Message::Close(_) => return None,
            Message::Ping(_) | Message::Pong(_) => {}
        }
    }
}

/// Writes input to the command, waiting while the sandbox is paused. Input for an ended command is dropped.
async fn input(open: &Open, command: ProcessId, bytes: &[u8]) {
    let _typed = open.when_awake(|| open.living.commands().write_stdin(command, bytes)).await;
}
