//! A terminal in a sandbox, over a WebSocket.
//!
//! ```text
//! start ─▶ attached ⇄ reconnecting        from the byte that was seen last
//!             └──────────┴─▶ over         ended · detached · a signal ended us
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
use super::exec::typed;
use super::{at, call};
use crate::env::TERM;
use crate::failure::Failure;
use crate::os::{self, RawTerminal, TerminalEvent, TerminalEvents};
use crate::remote::http::{Server, refused};
use crate::say;
use crate::view::Screen;

/// How often the connection is looked at, and after how much silence it counts as broken.
const HEARTBEAT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(35);
/// How long a piece of input may take to leave.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a broken connection is tried again, and how long between two tries.
const TRIES_FOR: Duration = Duration::from_secs(60);
const BETWEEN_TRIES: Duration = Duration::from_millis(500);
/// Where no terminal says how it has to be.
const USUAL_TERM: &str = "xterm-256color";
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh";

type Socket = WebSocketStream<TokioIo<Upgraded>>;

pub(super) fn shell(server: &Server, args: ShellArgs) -> Result<u8, Failure> {
    let size = os::window_size().ok_or_else(|| {
        Failure::invalid("shell needs a terminal as standard input; for programs use 'belljar sandbox exec'")
    })?;
    let number = match args.attach {
        Some(number) => number,
        None => start(server, &args, size)?,
    };
    os::runtime()?.block_on(async {
        let mut shell = Shell {
            server,
            sandbox: at(&args.id, ""),
            number,
            offset: 0,
            keys: typed(),
            detacher: Detacher::default(),
            events: TerminalEvents::listen()?,
            screen: Screen::start(true)?,
        };
        let raw = RawTerminal::enter()?;
        let over = shell.work().await;
        shell.screen.finish().await;
        drop(raw);
        match over? {
            Over::Ended(command) => Ok(exit_status(&command)),
            Over::Signalled(status) => Ok(status),
            Over::Failed(failure) => Err(failure),
            Over::Detached => {
                say::note(&format!(
                    "detached; belljar sandbox shell {} --attach {number} joins again",
                    args.id
                ));
                Ok(0)
            }
        }
    })
}

fn start(server: &Server, args: &ShellArgs, (rows, columns): (u16, u16)) -> Result<u64, Failure> {
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
    let started = call(server, Method::POST, &at(&args.id, "/commands"), Some(&request))?;
    started["id"].as_u64().ok_or_else(|| Failure::host("the server did not say which command it started"))
}

/// Why the person is at their own terminal again.
enum Over {
    Ended(Value),
    Detached,
    /// With this exit status.
    Signalled(u8),
    /// The server says why.
    Failed(Failure),
}

struct Shell<'a> {
    server: &'a Server,
    sandbox: String,
    number: u64,
    /// How much of the command's output was seen.
    offset: u64,
    keys: mpsc::Receiver<Vec<u8>>,
    detacher: Detacher,
    events: TerminalEvents,
    screen: Screen,
}

impl Shell<'_> {
    async fn work(&mut self) -> Result<Over, Failure> {
        let mut socket = self.connect().await?;
        loop {
            if let Some(over) = self.attached(&mut socket).await {
                return Ok(over);
            }
            self.tell("connection lost, trying again").await;
            socket = match self.reconnect().await? {
                Ok(socket) => socket,
                Err(over) => return Ok(over),
            };
            self.tell("connected again").await;
        }
    }

    async fn connect(&self) -> Result<Socket, Failure> {
        let place = format!("{}/commands/{}/terminal?from={}", self.sandbox, self.number, self.offset);
        let stream = self.server.upgrade(&place).await?;
        Ok(WebSocketStream::from_raw_socket(stream, Role::Client, None).await)
    }

    /// A new connection, or the reason to need none any more.
    async fn reconnect(&mut self) -> Result<Result<Socket, Over>, Failure> {
        let until = Instant::now() + TRIES_FOR;
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
            if let Some(over) = self.wait(Instant::now() + BETWEEN_TRIES).await {
                return Ok(Err(over));
            }
        }
    }

    /// Lets time pass. What is typed meanwhile goes nowhere, but the person can leave.
    async fn wait(&mut self, until: Instant) -> Option<Over> {
        loop {
            tokio::select! {
                () = sleep_until(until) => return None,
                keys = self.keys.recv() => match keys {
                    Some(keys) if self.detacher.push(&keys).is_some() => {}
                    Some(_) => return Some(Over::Detached),
                    None => return Some(Over::Signalled(129)),
                },
                event = self.events.next() => match event {
                    TerminalEvent::Resized => {}
                    TerminalEvent::Ended(status) => return Some(Over::Signalled(status)),
                },
            }
        }
    }

    /// Works until there is a reason to end; nothing where the connection broke.
    async fn attached(&mut self, socket: &mut Socket) -> Option<Over> {
        let mut heartbeat = interval(HEARTBEAT);
        let mut heard = Instant::now();
        send(socket, size_message()).await?;
        loop {
            tokio::select! {
                message = socket.next() => {
                    heard = Instant::now();
                    if let Some(over) = self.message(message?.ok()?).await? {
                        return Some(over);
                    }
                }
                keys = self.keys.recv() => match keys.as_deref().map(|keys| self.detacher.push(keys)) {
                    Some(Some(keys)) if keys.is_empty() => {}
                    Some(Some(keys)) => send(socket, Message::binary(keys)).await?,
                    Some(None) => return Some(Over::Detached),
                    None => return Some(Over::Signalled(129)),
                },
                event = self.events.next() => match event {
                    TerminalEvent::Resized => send(socket, size_message()).await?,
                    TerminalEvent::Ended(status) => return Some(Over::Signalled(status)),
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

    /// Nothing where the connection is over; the reason to end where there is one.
    async fn message(&mut self, message: Message) -> Option<Option<Over>> {
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
                    return Some(Some(Over::Ended(command.clone())));
                } else if let Some(error) = control.get("error") {
                    return Some(Some(Over::Failed(refused(error, "the terminal is gone"))));
                }
            }
            Message::Close(_) => return None,
            _ => {}
        }
        Some(None)
    }

    /// A line of ours on a terminal that does not return by itself.
    async fn tell(&self, what: &str) {
        self.screen.show(Stream::Stderr, format!("\r\nbelljar: {what}\r\n").into_bytes()).await;
    }
}

fn size_message() -> Message {
    let (rows, columns) = os::window_size().unwrap_or((24, 80));
    Message::text(json!({"resize": {"rows": rows, "columns": columns}}).to_string())
}

/// Nothing where that does not work any more.
async fn send(socket: &mut Socket, message: Message) -> Option<()> {
    timeout(PATIENCE, socket.send(message)).await.ok()?.ok()
}

/// Finds Ctrl-P Ctrl-Q in what is typed. A Ctrl-P waits for the key after it.
#[derive(Debug, Default)]
struct Detacher {
    waiting: bool,
}

impl Detacher {
    const CTRL_P: u8 = 0x10;
    const CTRL_Q: u8 = 0x11;

    /// What to pass on; nothing where the person wants to leave.
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
