//! `belljar sandbox shell`: a terminal in a sandbox, over a WebSocket.
//!
//! ```text
//! start ─▶ attached ⇄ reconnecting        resumes after the last received byte
//!             └──────────┴─▶ over         ended · detached · a signal was received
//! ```

use std::time::Duration;

use belljar_engine::provider::Stream;
use futures_util::{SinkExt, StreamExt};
use hyper::Method;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::args::ShellArgs;
use super::commands::exit_status;
use super::exec::read_stdin;
use super::{call, sandbox_url};
use crate::env::TERM;
use crate::error::CliError;
use crate::os::{self, RawTerminal, TerminalEvent, TerminalEvents};
use crate::remote::http::{Server, server_error};
use crate::say;
use crate::view::StreamView;

/// Interval of pings, and the silence after which the connection counts as broken.
const HEARTBEAT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(35);
/// Time limit for sending input.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);
/// How long to try to reconnect, and the pause between two attempts.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);
/// `TERM` if the environment has none.
const USUAL_TERM: &str = "xterm-256color";
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh";

type Socket = WebSocketStream<TokioIo<Upgraded>>;

pub(super) fn shell(server: &Server, args: ShellArgs) -> Result<u8, CliError> {
    let size = os::window_size().ok_or_else(|| {
        CliError::invalid("shell needs a terminal as standard input; in scripts, use: belljar sandbox exec")
    })?;
    let number = match args.attach {
        Some(number) => number,
        None => start(server, &args, size)?,
    };
    os::runtime()?.block_on(async {
        let mut shell = TerminalSession {
            server,
            sandbox: sandbox_url(&args.id, ""),
            number,
            offset: 0,
            keys: read_stdin(),
            detacher: Detacher::default(),
            events: TerminalEvents::listen()?,
            screen: StreamView::start(true)?,
        };
        let raw = RawTerminal::enter()?;
        let over = shell.work().await;
        shell.screen.finish().await;
        drop(raw);
        match over? {
            SessionEnd::Ended(command) => Ok(exit_status(&command)),
            SessionEnd::Signalled(status) => Ok(status),
            SessionEnd::Failed(failure) => Err(failure),
            SessionEnd::Detached => {
                say::note(&format!(
                    "detached; join again with: belljar sandbox shell {} --attach {number}",
                    args.id
                ));
                Ok(0)
            }
        }
    })
}

fn start(server: &Server, args: &ShellArgs, (rows, columns): (u16, u16)) -> Result<u64, CliError> {
    let term = std::env::var(TERM).ok().filter(|term| !term.is_empty() && term != "dumb");
    let mut request = json!({
        "background": true,
        "terminal": {"rows": rows, "columns": columns},
        "env": {"TERM": term.as_deref().unwrap_or(USUAL_TERM)},
    });
    match args.command.as_slice() {
        [] => request["shell"] = SHELL.into(),
        command => request["command"] = json!(command),
    }
    let started = call(server, Method::POST, &sandbox_url(&args.id, "/commands"), Some(&request))?;
    started["id"].as_u64().ok_or_else(|| CliError::host("the server's response has no command number"))
}

/// Why the session ended.
enum SessionEnd {
    Ended(Value),
    Detached,
    /// This process was asked to exit with this status.
    Signalled(u8),
    /// The server reported an error.
    Failed(CliError),
}

struct TerminalSession<'a> {
    server: &'a Server,
    sandbox: String,
    number: u64,
    /// Number of output bytes received.
    offset: u64,
    keys: mpsc::Receiver<Vec<u8>>,
    detacher: Detacher,
    events: TerminalEvents,
    screen: StreamView,
}

impl TerminalSession<'_> {
    async fn work(&mut self) -> Result<SessionEnd, CliError> {
        let mut socket = self.connect().await?;
        loop {
            if let Some(over) = self.run_attached(&mut socket).await {
                return Ok(over);
            }
            self.print_message("connection lost, reconnecting").await;
            socket = match self.reconnect().await? {
                Ok(socket) => socket,
                Err(over) => return Ok(over),
            };
            self.print_message("reconnected").await;
        }
    }

    async fn connect(&self) -> Result<Socket, CliError> {
        let url = format!("{}/commands/{}/terminal?from={}", self.sandbox, self.number, self.offset);
        let stream = self.server.upgrade(&url).await?;
        Ok(WebSocketStream::from_raw_socket(stream, Role::Client, None).await)
    }

    /// Reconnects. Returns the new connection, or the reason why the session ended meanwhile.
    async fn reconnect(&mut self) -> Result<Result<Socket, SessionEnd>, CliError> {
        let until = Instant::now() + RECONNECT_TIMEOUT;
        loop {
            let failure = match self.connect().await {
                Ok(socket) => return Ok(Ok(socket)),
                Err(failure) => failure,
            };
            let gone = match self.server.find(&self.sandbox).await {
                Ok(sandbox) => sandbox.is_none_or(|sandbox| sandbox["state"] == "ended"),
                Err(_) => false,
            };
            if gone || Instant::now() > until {
                return Err(failure);
            }
            if let Some(over) = self.wait(Instant::now() + RECONNECT_PAUSE).await {
                return Ok(Err(over));
            }
        }
    }

    /// Waits. Input typed meanwhile is discarded, but the user can detach.
    async fn wait(&mut self, until: Instant) -> Option<SessionEnd> {
        loop {
            tokio::select! {
                () = sleep_until(until) => return None,
                keys = self.keys.recv() => match keys {
                    Some(keys) if self.detacher.push(&keys).is_some() => {}
                    Some(_) => return Some(SessionEnd::Detached),
                    None => return Some(SessionEnd::Signalled(129)),
                },
                event = self.events.next() => match event {
                    TerminalEvent::Resized => {}
                    TerminalEvent::Ended(status) => return Some(SessionEnd::Signalled(status)),
                },
            }
        }
    }

    /// Works until the session ends; `None` if the connection broke.
    async fn run_attached(&mut self, socket: &mut Socket) -> Option<SessionEnd> {
        let mut heartbeat = interval(HEARTBEAT);
        let mut heard = Instant::now();
        send(socket, size_message()).await?;
        loop {
            tokio::select! {
                message = socket.next() => {
                    heard = Instant::now();
                    if let Some(over) = self.handle_message(message?.ok()?).await? {
                        return Some(over);
                    }
                }
                keys = self.keys.recv() => match keys.as_deref().map(|keys| self.detacher.push(keys)) {
                    Some(Some(keys)) if keys.is_empty() => {}
                    Some(Some(keys)) => send(socket, Message::binary(keys)).await?,
                    Some(None) => return Some(SessionEnd::Detached),
                    None => return Some(SessionEnd::Signalled(129)),
                },
                event = self.events.next() => match event {
                    TerminalEvent::Resized => send(socket, size_message()).await?,
                    TerminalEvent::Ended(status) => return Some(SessionEnd::Signalled(status)),
                },
                _ = heartbeat.tick() => {
                    if heard.elapsed() > SILENCE {
                        return None;
                    }
                    send(socket, Message::Ping(Vec::new().into())).await?;
                }
            }
        }
    }

    /// Handles a message. Returns `None` if the connection closed, `Some(Some(_))` if the session ended.
    async fn handle_message(&mut self, message: Message) -> Option<Option<SessionEnd>> {
        match message {
            Message::Binary(output) => {
                self.offset += output.len() as u64;
                self.screen.show(Stream::Stdout, output.into()).await;
            }
            Message::Text(text) => {
                let control: Value = serde_json::from_str(&text).unwrap_or_default();
                let number = |value: &Value| value.as_u64().unwrap_or_default();
                if let Some(attached) = control.get("attached") {
                    self.offset = number(&attached["offset"]);
                } else if let Some(lost) = control.get("lost") {
                    self.offset = number(&lost["offset"]).saturating_add(number(&lost["bytes"]));
                } else if let Some(command) = control.get("ended") {
                    return Some(Some(SessionEnd::Ended(command.clone())));
                } else if let Some(error) = control.get("error") {
                    return Some(Some(SessionEnd::Failed(server_error(error, "the terminal is gone"))));
                }
            }
            Message::Close(_) => return None,
            _ => {}
        }
        Some(None)
    }

    /// Prints a message of belljar's own; the raw terminal needs explicit carriage returns.
    async fn print_message(&self, what: &str) {
        self.screen.show(Stream::Stderr, format!("\r\nbelljar: {what}\r\n").into_bytes()).await;
    }
}

fn size_message() -> Message {
    let (rows, columns) = os::window_size().unwrap_or((24, 80));
    Message::text(json!({"resize": {"rows": rows, "columns": columns}}).to_string())
}

/// Sends a message; `None` if the connection is broken.
async fn send(socket: &mut Socket, message: Message) -> Option<()> {
    timeout(SEND_TIMEOUT, socket.send(message)).await.ok()?.ok()
}

/// Detects Ctrl-P Ctrl-Q in typed input. A Ctrl-P is held back until the next key.
#[derive(Debug, Default)]
struct Detacher {
    waiting: bool,
}

impl Detacher {
    const CTRL_P: u8 = 0x10;
    const CTRL_Q: u8 = 0x11;

    /// Returns the input to pass on, or `None` if the user detaches.
    fn push(&mut self, keys: &[u8]) -> Option<Vec<u8>> {
        let mut passed = Vec::with_capacity(keys.len() + 1);
        for key in keys {
            match (std::mem::take(&mut self.waiting), *key) {
                (true, Self::CTRL_Q) => return None,
                (true, Self::CTRL_P) => {
                    passed.push(Self::CTRL_P);
                    self.waiting = true;
                }
                (true, key) => passed.extend([Self::CTRL_P, key]),
                (false, Self::CTRL_P) => self.waiting = true,
                (false, key) => passed.push(key),
            }
        }
        Some(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_sequence_detaches() {
        let mut detacher = Detacher::default();
        assert_eq!(detacher.push(b"ls\x11\r"), Some(b"ls\x11\r".to_vec()));
        assert_eq!(detacher.push(b"a\x10"), Some(b"a".to_vec()));
        assert_eq!(detacher.push(b"b"), Some(b"\x10b".to_vec()));
        assert_eq!(detacher.push(b"\x10\x10\x10"), Some(b"\x10\x10".to_vec()));
        assert_eq!(detacher.push(b"\x11"), None);
        assert_eq!(detacher.push(b"x\x10\x11y"), None);
    }
}
