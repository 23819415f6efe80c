//! Clients that disconnect during a request, a response or a stream: the server leaks no descriptor and no
//! process.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::soak::{files, resident};
use crate::common::host::{Snapshot, alive_with, left_after};
use crate::common::server::{KEY, Server};
use crate::{PATIENCE, sized};

const CLIENTS: usize = 16;
const JSON: &str = "Content-Type: application/json\r\n";
const EVENTS: &str = "Accept: text/event-stream\r\n";
/// Descriptors of the server's own work, which vary.
const SLACK: usize = 8;

pub(crate) fn disconnects_leak_nothing() {
    let many = sized(300, 1_000, 10_000);
    let folder = tempfile::tempdir().unwrap();
    let before = Snapshot::take();
    let mut server = Server::new(folder.path());
    let token = format!("3603.{}", std::process::id());
    let code = format!("(sleep {token} &) ; while :; do echo tick; sleep 0.05; done");
    let streaming =
        json!({"language": "bash", "code": code, "wait": false, "limits": {"timeout_ms": 3_600_000}});
    let started = server.post("/v1/executions", &streaming);
    assert_eq!(started.status, 202, "{}", started.text());
    let id = started.json()["id"].as_str().unwrap().to_owned();
    hang_up(&server, &id, CLIENTS);
    let (open, memory) = (files(server.child.id()), resident(server.child.id()));
    hang_up(&server, &id, many);
    let waited = Instant::now();
    while files(server.child.id()) > open + SLACK {
        let now = files(server.child.id());
        assert!(waited.elapsed() < PATIENCE, "{now} descriptors are open, {open} before");
        std::thread::sleep(Duration::from_millis(50));
    }
    let grown = resident(server.child.id()).saturating_sub(memory);
    println!(
        "{many} clients hung up; as many descriptors as before after {:?}, {} kB more",
        waited.elapsed(),
        grown >> 10
    );
    // The watched execution belongs to another client, and runs until it is canceled.
    let path = format!("/v1/executions/{id}");
    assert_eq!(server.get(&path).json()["status"], "running");
    assert!(server.delete(&path).status < 300);
    assert_eq!(alive_with(&token, PATIENCE), Vec::<String>::new());
    server.signal("-TERM");
    server.child.wait().unwrap();
    assert_eq!(left_after(&before, PATIENCE), Vec::<String>::new());
}

/// Each client does one of four things and disconnects.
fn hang_up(server: &Server, id: &str, many: usize) {
    let next = AtomicUsize::new(0);
    let short: Value = json!({"command": ["echo", "nobody listens"]});
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= many {
                        return;
                    }
                    let mut stream = match number % 4 {
                        0 => half_a_body(server),
                        1 => {
                            server.send_as(KEY, "POST", "/v1/executions", JSON, short.to_string().as_bytes())
                        }
                        _ => server.send_as(KEY, "GET", &format!("/v1/executions/{id}"), EVENTS, b""),
                    };
                    if number % 4 > 1 {
                        // Part of the stream has arrived.
                        let _some = stream.read(&mut [0; 64]);
                    }
                    let _hung_up = stream.shutdown(Shutdown::Both);
                }
            });
        }
    });
}

/// Sends a request with a body shorter than announced.
fn half_a_body(server: &Server) -> TcpStream {
    let address = server.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/executions HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {KEY}\r\n{JSON}Content-Length: 1000\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}
