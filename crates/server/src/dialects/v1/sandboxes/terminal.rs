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
use belljar_engine::report::CommandReport;
use belljar_engine::sandbox::{TerminalSizeSpec, admit_terminal_size};
use belljar_engine::sandbox_handle::{OutputEvent, ProcessId};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::output::LostEvent;
use crate::app_state::AppState;
use crate::error::Error;
use crate::http::problem::error_json;
use crate::http::query::Query;
use crate::sandboxes::command_reader::CommandReader;
use crate::sandboxes::live_sandbox::{LiveSandbox, SandboxInUse};

/// Maximum length of a client's message in bytes.
const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// Timeout of the closing handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

type TerminalSink = SplitSink<WebSocket, Message>;

/// A control message of the client.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TerminalControl {
    resize: TerminalSizeSpec,
}

/// A control message for the client.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum TerminalMessage {
    Attached { offset: u64 },
    Lost(LostEvent),
    Ended(Box<CommandReport>),
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
        (status = 404, description = "No such sandbox or command"),
        (status = 422, description = "The command has no terminal, or this is not a WebSocket request"),
    )
)]
pub(crate) async fn terminal(
    State(state): State<Arc<AppState>>,
    used: SandboxInUse,
    Path((_, number)): Path<(String, String)>,
    query: RawQuery,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Error> {
    let from = Query::parse(query, &["from"])?.parsed("from")?.unwrap_or(0);
    let slot = state.streams.open(&used.tenant)?;
    let reader = CommandReader::attach(used, &number, from).await?;
    let refused = |field, message: &str| Error::Invalid { field, message: message.to_owned() };
    if !reader.info().terminal {
        return Err(refused("command", "the command has no terminal; read its output instead"));
    }
    let upgrade = upgrade.map_err(|_| refused("upgrade", "this is not a WebSocket request"))?;
    let upgrade = upgrade.max_message_size(MAX_MESSAGE_BYTES).max_frame_size(MAX_MESSAGE_BYTES);
    Ok(upgrade.on_upgrade(async move |socket| {
        let _slot = slot;
        serve(state, reader, socket).await;
    }))
}

async fn serve(state: Arc<AppState>, mut reader: CommandReader, socket: WebSocket) {
    let (mut sink, mut source) = socket.split();
    let (open, command) = (Arc::clone(reader.sandbox()), reader.info().id);
    let silence = state.settings.terminal_silence;
    let last = tokio::select! {
        last = read_input(&open, command, &mut source, silence) => last,
        last = send_output(&state, &mut reader, &mut sink) => last.ok(),
    };
    let farewell = async {
        if let Some(last) = last {
            let _gone = sink.send(Message::Close(Some(last))).await;
        }
        // Drain incoming messages: closing with unread data would reset the connection and lose what was
        // sent.
        while let Some(Ok(_)) = source.next().await {}
    };
    let _late = timeout(CLOSE_TIMEOUT, farewell).await;
}

/// Sends output until the end, and returns the reason for closing.
async fn send_output(
    state: &AppState,
    reader: &mut CommandReader,
    sink: &mut TerminalSink,
) -> Result<CloseFrame, axum::Error> {
    send_control(sink, TerminalMessage::Attached { offset: reader.offset() }).await?;
    let mut ping = interval(state.settings.terminal_silence / 4);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            biased;
            () = state.live_executions.closing() => return Ok(close_frame(close_code::AWAY, &Error::ShuttingDown)),
            _ = ping.tick() => {
                sink.send(Message::Ping(Default::default())).await?;
                continue;
            }
            event = reader.next() => event,
        };
        match event {
            Ok(Some(OutputEvent::Bytes { bytes, .. })) => sink.send(Message::Binary(bytes.into())).await?,
            Ok(Some(OutputEvent::Lost { offset, bytes })) => {
                send_control(sink, TerminalMessage::Lost(LostEvent { bytes, offset })).await?;
            }
            Ok(Some(OutputEvent::Ended { .. }) | None) => {
                send_control(sink, TerminalMessage::Ended(reader.report().into())).await?;
                return Ok(CloseFrame { code: close_code::NORMAL, reason: "ended".into() });
            }
            Err(error) => {
                sink.send(Message::Text(error_json(&error).into())).await?;
                return Ok(close_frame(close_code::AWAY, &error));
            }
        }
    }
}

async fn send_control(sink: &mut TerminalSink, message: TerminalMessage) -> Result<(), axum::Error> {
    sink.send(Message::Text(serde_json::to_string(&message).unwrap_or_default().into())).await
}

fn close_frame(code: u16, error: &Error) -> CloseFrame {
    CloseFrame { code, reason: error.code().as_word().into() }
}

/// Reads input until the client disconnects, is silent for too long or sends an invalid message. While the
/// program does not read its input, the silence timeout is suspended, because nothing is read from the client
/// then.
async fn read_input(
    open: &LiveSandbox,
    command: ProcessId,
    source: &mut SplitStream<WebSocket>,
    silence: Duration,
) -> Option<CloseFrame> {
    loop {
        let Ok(Some(Ok(message))) = timeout(silence, source.next()).await else { return None };
        match message {
            Message::Binary(bytes) => write_input(open, command, &bytes).await,
            Message::Text(text) => match serde_json::from_str::<TerminalControl>(&text) {
                Ok(TerminalControl { resize }) => {
                    let Ok(size) = admit_terminal_size(resize) else {
                        return Some(CloseFrame { code: close_code::POLICY, reason: "resize".into() });
                    };
                    // Fails if the command has ended, which is fine.
                    let _resized =
                        open.retry_while_paused(|| open.living.commands().resize(command, size)).await;
                }
                Err(_) => write_input(open, command, text.as_bytes()).await,
            },
            Message::Close(_) => return None,
            Message::Ping(_) | Message::Pong(_) => {}
        }
    }
}

/// Writes input to the command, waiting while the sandbox is paused. Input for an ended command is dropped.
async fn write_input(open: &LiveSandbox, command: ProcessId, bytes: &[u8]) {
    let _typed = open.retry_while_paused(|| open.living.commands().write_stdin(command, bytes)).await;
}
