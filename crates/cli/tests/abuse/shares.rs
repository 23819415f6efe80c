//! A greedy tenant beside a modest one, with the default configuration.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::server::{Reply, Server};

const JSON: &str = "Content-Type: application/json\r\n";

struct Tenants {
    server: Server,
    mallory: String,
    bob: String,
    _folder: tempfile::TempDir,
}

impl Tenants {
    fn new(settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::configured(folder.path(), settings);
        let (mallory, bob) = (server.tenant("mallory", json!({})), server.tenant("bob", json!({})));
        Self { server, mallory, bob, _folder: folder }
    }

    fn post(&self, key: &str, path: &str, body: &Value) -> Reply {
        self.server.call_as(key, "POST", path, JSON, body.to_string().as_bytes())
    }

    /// Checks that Bob's small request is served while all of Mallory's requests are still running.
    fn bob_runs(&self) {
        let ran = self.post(&self.bob, "/v1/executions", &json!({"command": ["echo", "hello"]}));
        assert_eq!((ran.status, &ran.json()["stdout"]), (200, &"hello\n".into()), "{}", ran.text());
    }

    fn count(&self, key: &str, status: &str) -> usize {
        let page = self.server.call_as(key, "GET", &format!("/v1/executions?status={status}"), "", b"");
        page.json()["executions"].as_array().unwrap().len()
    }

    fn wait_for_count(&self, key: &str, status: &str, count: usize) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.count(key, status) != count {
            assert!(Instant::now() < end, "{} {status}, not {count}", self.count(key, status));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn status(stream: &mut TcpStream) -> String {
    let mut line = [0; 12];
    stream.read_exact(&mut line).unwrap();
    String::from_utf8_lossy(&line[9..]).into_owned()
}

#[test]
fn sleeping_executions_of_one_tenant_do_not_delay_another() {
    let tenants = Tenants::new("concurrency = 8");
    let sleep = json!({"command": ["sleep", "600"], "wait": false, "limits": {"timeout_ms": 60_000}});
    for _ in 0..12 {
        assert_eq!(tenants.post(&tenants.mallory, "/v1/executions", &sleep).status, 202);
    }
    tenants.wait_for_count(&tenants.mallory, "running", 8);
    tenants.bob_runs();
    assert_eq!(tenants.count(&tenants.mallory, "queued"), 4, "all of mallory's requests are still queued");
}

#[test]
fn executions_in_sandboxes_are_scheduled_fairly() {
    let tenants = Tenants::new("concurrency = 2");
    let sleep = json!({"command": ["sleep", "600"], "wait": false, "limits": {"timeout_ms": 60_000}});
    for _ in 0..3 {
        let opened = tenants.post(&tenants.mallory, "/v1/sandboxes", &json!({}));
        assert_eq!(opened.status, 201, "{}", opened.text());
        let path = format!("/v1/sandboxes/{}/executions", opened.json()["id"].as_str().unwrap());
        assert_eq!(tenants.post(&tenants.mallory, &path, &sleep).status, 202);
    }
    tenants.wait_for_count(&tenants.mallory, "running", 2);
    tenants.bob_runs();
    assert_eq!(tenants.count(&tenants.mallory, "queued"), 1);
}

#[test]
fn announced_bodies_of_one_tenant_do_not_block_another() {
    let tenants = Tenants::new("");
    let address = tenants.server.url.trim_start_matches("http://");
    let head = format!(
        "POST /v1/executions HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\n{JSON}\
         Content-Length: 33554432\r\nExpect: 100-continue\r\n\r\n",
        tenants.mallory
    );
    let mut idle = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        // The server has read the head and waits for the body.
        assert_eq!(status(&mut stream), "100");
        idle.push(stream);
    }
    tenants.bob_runs();
}

#[test]
fn event_streams_of_one_tenant_leave_connections_to_another() {
    let tenants = Tenants::new("connections = 32");
    let sleep = json!({"command": ["sleep", "600"], "wait": false, "limits": {"timeout_ms": 60_000}});
    let started = tenants.post(&tenants.mallory, "/v1/executions", &sleep).json();
    let path = format!("/v1/executions/{}", started["id"].as_str().unwrap());
    let (mut streams, mut served) = (Vec::new(), 0);
    for _ in 0..32 {
        let events = "Accept: text/event-stream\r\n";
        let mut stream = tenants.server.send_as(&tenants.mallory, "GET", &path, events, b"");
        served += usize::from(status(&mut stream) == "200");
        streams.push(stream);
    }
    tenants.bob_runs();
    assert_eq!(served, 6);
}

#[test]
fn sandboxes_of_one_tenant_leave_some_to_another() {
    let tenants = Tenants::new("sandboxes = 4");
    let open = |key: &str| tenants.post(key, "/v1/sandboxes", &json!({}));
    assert_eq!((open(&tenants.mallory).status, open(&tenants.mallory).status), (201, 201));
    let refused = open(&tenants.mallory);
    assert_eq!((refused.status, refused.code().as_str()), (429, "too_many_sandboxes"));
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("its share of the sandboxes (2)"), "{message}");
    assert!(message.contains("belljar tenant quotas TENANT --sandboxes N"), "{message}");
    // Following the advice in the message helps.
    let raised = json!({"quotas": {"sandboxes": 3}}).to_string();
    let changed = tenants.server.call("PATCH", "/v1/tenants/mallory", JSON, raised.as_bytes());
    assert_eq!((changed.status, open(&tenants.mallory).status), (200, 201));
    // Bob's second sandbox comes from the reserve.
    assert_eq!((open(&tenants.bob).status, open(&tenants.bob).status), (201, 201));
}
