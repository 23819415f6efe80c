//! Terminals over WebSockets.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::common::host::alive_with;
use crate::common::server::{KEY, Server};
use crate::{own_sleep, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);

/// The client side of a terminal.
struct Terminal {
    socket: WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>,
    /// Offset of the first byte received.
    from: u64,
    /// Output received so far.
    seen: Vec<u8>,
    /// Control messages received so far.
    said: Vec<Value>,
    closed: Option<(u16, String)>,
}

type Headers<'a> = Vec<(&'static str, &'a str)>;

async fn open(server: &Server, path: &str, headers: &Headers<'_>) -> Result<Terminal, Error> {
    let mut request = format!("{}{path}", server.url.replacen("http", "ws", 1)).into_client_request()?;
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    let (socket, _) = connect_async(request).await?;
    Ok(Terminal { socket, from: 0, seen: Vec::new(), said: Vec::new(), closed: None })
}

impl Terminal {
    async fn new(server: &Server, command: &str, from: u64) -> Self {
        let bearer = format!("Bearer {KEY}");
        let path = format!("{command}/terminal?from={from}");
        let mut terminal = open(server, &path, &vec![("authorization", bearer.as_str())]).await.unwrap();
        terminal.until("the greeting", |terminal| !terminal.said.is_empty()).await;
        assert_eq!(terminal.said.remove(0), json!({"attached": {"offset": from}}));
        terminal.from = from;
        terminal
    }

    /// Reads until a condition holds.
    async fn until(&mut self, what: &str, seen: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !seen(self) {
            let left = end.saturating_duration_since(Instant::now());
            match timeout(left, self.socket.next()).await {
                Ok(Some(Ok(Message::Binary(bytes)))) => self.seen.extend_from_slice(&bytes),
                Ok(Some(Ok(Message::Text(text)))) => self.said.push(serde_json::from_str(&text).unwrap()),
                Ok(Some(Ok(Message::Close(frame)))) => {
                    self.closed = frame.map(|frame| (frame.code.into(), frame.reason.to_string()))
                }
                Ok(Some(Ok(_))) => {}
                other => panic!("timed out waiting for: {what}: {other:?}, {}", self.text()),
            }
        }
    }

    async fn shows(&mut self, text: &str) {
        self.until(text, |terminal| terminal.has(text.as_bytes())).await;
    }

    fn has(&self, bytes: &[u8]) -> bool {
        self.seen.windows(bytes.len()).any(|part| part == bytes)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    async fn say(&mut self, message: Message) {
        self.socket.send(message).await.unwrap();
    }

    async fn type_in(&mut self, text: &str) {
        self.say(Message::Binary(text.as_bytes().to_vec().into())).await;
    }

    async fn ends(&mut self) {
        self.until("the close", |terminal| terminal.closed.is_some()).await;
    }
}

/// Starts a shell in a terminal. Returns the paths of its sandbox and of the command.
fn shell(server: &Server) -> (String, String) {
    let sandbox = server.sandbox(&json!({}));
    let request = json!({"command": ["sh"], "env": {"PS1": "$ "}, "terminal": {"rows": 24, "columns": 80}, "background": true});
    let command = server.post(&format!("{sandbox}/commands"), &request);
    assert_eq!((command.status, &command.json()["terminal"]), (201, &json!(true)), "{}", command.text());
    let own = format!("{sandbox}/commands/{}", command.json()["id"]);
    (sandbox, own)
}

#[tokio::test]
async fn a_shell_has_a_terminal_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let (_, own) = shell(&server);
    let mut terminal = Terminal::new(&server, &own, 0).await;
    terminal.type_in("tty; stty size\n").await;
    terminal.shows("/dev/pts/").await;
    terminal.shows("24 80").await;
    terminal.say(Message::text(r#"{"resize":{"rows":40,"columns":100}}"#)).await;
    // Text that is not a control message is input.
    terminal.say(Message::text("stty size\n")).await;
    terminal.shows("40 100").await;
    assert_eq!(server.post(&format!("{own}/resize"), &json!({"rows": 50, "columns": 120})).status, 204);
    terminal.type_in("stty size\n").await;
    terminal.shows("50 120").await;

    let sleep = own_sleep(97_661);
    terminal.type_in(&format!("{sleep}\n")).await;
    wait_for("the program runs", || !alive_with(&sleep, Duration::ZERO).is_empty());
    terminal.type_in("\x03").await;
    assert!(alive_with(&sleep, Duration::from_secs(60)).is_empty());
    terminal.type_in("echo still al''ive\n").await;
    terminal.shows("still alive").await;

    // Output of a full-screen program passes unchanged.
    terminal.type_in("printf '\\033[?1049h\\033[2J\\377\\000\\342\\202\\033[?1049l'\n").await;
    let screen = b"\x1b[?1049h\x1b[2J\xff\x00\xe2\x82\x1b[?1049l";
    terminal.until("the screen", |terminal| terminal.has(screen)).await;

    terminal.type_in("exit 3\n").await;
    terminal.ends().await;
    let ended = &terminal.said.last().unwrap()["ended"];
    assert_eq!((&ended["exit_code"], &ended["output_bytes"]), (&json!(3), &json!(terminal.seen.len())));
    assert_eq!(terminal.closed, Some((1000, "ended".to_owned())));
    // Also after it has ended.
    let mut again = Terminal::new(&server, &own, 0).await;
    again.ends().await;
    assert!(again.seen == terminal.seen && again.said.last().unwrap()["ended"] == *ended);
}

#[tokio::test]
async fn several_clients_can_attach_and_reconnect() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let (_, own) = shell(&server);
    let mut first = Terminal::new(&server, &own, 0).await;
    first.type_in("echo o''ne\n").await;
    first.shows("one\r\n").await;
    let mut second = Terminal::new(&server, &own, 0).await;
    second.shows("one\r\n").await;
    second.type_in("echo t''wo\n").await;
    first.shows("two\r\n").await;
    second.shows("two\r\n").await;
    // A client that disconnects ends nothing, and resumes at its offset.
    let offset = first.from + first.seen.len() as u64;
    first.socket.close(None).await.unwrap();
    second.type_in("echo th''ree\n").await;
    second.shows("three\r\n").await;
    let mut back = Terminal::new(&server, &own, offset).await;
    back.shows("three\r\n").await;
    second.type_in("exit\n").await;
    second.ends().await;
    back.ends().await;
    assert_eq!([first.seen, back.seen].concat(), second.seen);
}

#[tokio::test]
async fn dropped_output_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = format!("{}/commands", server.sandbox(&json!({})));
    let request = json!({"shell": "seq 100000; read go", "terminal": {"rows": 24, "columns": 80},
        "keep_bytes": 65536, "background": true});
    let own = format!("{url}/{}", server.post(&url, &request).json()["id"]);
    let total = (1..=100_000).map(|number| format!("{number}\r\n").len()).sum::<usize>();
    wait_for("all of it", || server.get(&own).json()["output_bytes"] == total);
    let mut terminal = Terminal::new(&server, &own, 0).await;
    terminal.shows("100000\r\n").await;
    let lost = terminal.said[0]["lost"].clone();
    assert_eq!(lost["offset"], 0);
    assert_eq!(lost["bytes"].as_u64().unwrap() as usize + terminal.seen.len(), total);
}

#[tokio::test]
async fn a_terminal_opens_for_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let (sandbox, own) = shell(&server);
    let other = format!("Bearer {}", server.tenant("other", json!({})));
    let bearer = format!("Bearer {KEY}");
    let path = format!("{own}/terminal");
    let same = server.url.clone();
    let plain =
        server.post(&format!("{sandbox}/commands"), &json!({"command": ["sleep", "60"], "background": true}));
    let plain = format!("{sandbox}/commands/{}/terminal", plain.json()["id"]);
    let cases: [(&str, Headers<'_>, u16); 8] = [
        (&path, vec![("authorization", &bearer)], 101),
        (&path, vec![("authorization", &bearer), ("origin", &same)], 101),
        (&path, vec![("authorization", &bearer), ("origin", "https://evil.test")], 403),
        (&path, vec![("authorization", &bearer), ("origin", "null")], 403),
        (&path, vec![], 401),
        (&path, vec![("authorization", "Bearer wrong")], 401),
        (&path, vec![("authorization", &other)], 404),
        (&plain, vec![("authorization", &bearer)], 422),
    ];
    for (path, headers, wanted) in cases {
        let status = match open(&server, path, &headers).await {
            Ok(_) => 101,
            Err(Error::Http(response)) => response.status().as_u16(),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(status, wanted, "{headers:?}");
    }
}

#[tokio::test]
async fn invalid_messages_close_only_their_socket() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let (_, own) = shell(&server);
    let mut witness = Terminal::new(&server, &own, 0).await;
    let mut huge = Terminal::new(&server, &own, 0).await;
    // The server may close the connection before everything is sent.
    let _ = huge.socket.send(Message::Binary(vec![b'x'; 1 << 20].into())).await;
    assert!(timeout(PATIENCE, async { while let Some(Ok(_)) = huge.socket.next().await {} }).await.is_ok());
    let mut wrong = Terminal::new(&server, &own, 0).await;
    wrong.say(Message::text(r#"{"resize":{"rows":0,"columns":0}}"#)).await;
    wrong.ends().await;
    assert_eq!(wrong.closed, Some((1008, "resize".to_owned())));
    witness.type_in("echo fi''ne\n").await;
    witness.shows("fine\r\n").await;
    assert!(!witness.has(b"xxxx"));
}

/// Opens a WebSocket whose client never sends anything.
pub(crate) fn mute(server: &Server, path: &str) -> TcpStream {
    let headers =
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let address = server.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nAuthorization: Bearer \
         {KEY}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

#[tokio::test]
async fn unresponsive_clients_are_disconnected() {
    let folder = tempfile::tempdir().unwrap();
    // Longer than it takes to open a terminal.
    let server = Server::configured(folder.path(), "terminal_silence = \"4s\"\nsandbox_idle = \"3s\"");
    let (sandbox, own) = shell(&server);
    let mut honest = Terminal::new(&server, &own, 0).await;
    let mut stream = mute(&server, &format!("{own}/terminal"));
    let mut gone = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        bytes
    });
    // A normal client answers pings while it waits, which keeps the sandbox in use.
    let waiting = async {
        loop {
            tokio::select! {
                message = honest.socket.next() => assert!(message.unwrap().is_ok()),
                bytes = &mut gone => return bytes.unwrap(),
            }
        }
    };
    let bytes = timeout(PATIENCE, waiting).await.unwrap();
    assert!(bytes.starts_with(b"HTTP/1.1 101"));
    // The shell is a running command, so the sandbox is in use until it ends.
    honest.type_in("echo he''re; exit\n").await;
    honest.shows("here\r\n").await;
    drop(honest);
    wait_for("the end", || server.get(&sandbox).json()["ended_because"] == "expired");
}

#[tokio::test]
async fn the_end_of_server_or_sandbox_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::configured(folder.path(), "drain = \"20s\"");
    let (sandbox, own) = shell(&server);
    let mut terminal = Terminal::new(&server, &own, 0).await;
    assert_eq!(server.delete(&sandbox).status, 200);
    terminal.ends().await;
    assert_eq!(terminal.said.last().unwrap()["error"]["code"], "sandbox_ended");
    assert_eq!(terminal.closed, Some((1001, "sandbox_ended".to_owned())));

    let (_, own) = shell(&server);
    let mut terminal = Terminal::new(&server, &own, 0).await;
    let _mute = mute(&server, &format!("{own}/terminal"));
    let started = Instant::now();
    server.signal("-TERM");
    terminal.ends().await;
    assert_eq!(terminal.closed, Some((1001, "shutting_down".to_owned())));
    assert!(server.child.wait().unwrap().success());
    // The server waits for neither of them.
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
}
