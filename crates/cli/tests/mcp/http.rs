//! `/mcp` and `/v1/tools` of a real server.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::{furnished, hears_of_the_install, waits_for};
use crate::common::belljar;
use crate::common::host::alive_with;
use crate::common::server::{KEY, Reply, Server};
use crate::expect::{everything, packages, skip};

/// Headers of every request.
const HEAD: &str = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";

/// A client of a protocol revision with sessions.
struct Client<'a> {
    server: &'a Server,
    key: String,
    session: String,
}

impl<'a> Client<'a> {
    fn start(server: &'a Server, key: &str) -> Self {
        let reply = begin(server, key);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let session = reply.header("mcp-session-id").unwrap().to_owned();
        let client = Self { server, key: key.to_owned(), session };
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn head(&self) -> String {
        format!("Mcp-Session-Id: {}\r\nMcp-Protocol-Version: 2025-06-18\r\n", self.session)
    }

    fn send(&self, message: &Value) -> Reply {
        post(self.server, &self.key, &self.head(), message)
    }

    fn call(&self, tool: &str, input: Value) -> Value {
        let reply = self.send(&request(7, "tools/call", json!({"name": tool, "arguments": input})));
        last(&reply)["result"].clone()
    }

    fn end(&self) -> u16 {
        self.server.call_as(&self.key, "DELETE", "/mcp", &self.head(), b"").status
    }
}

fn request(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn begin(server: &Server, key: &str) -> Reply {
    let who = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": who});
    post(server, key, "", &request(1, "initialize", params))
}

fn post(server: &Server, key: &str, head: &str, message: &Value) -> Reply {
    server.call_as(key, "POST", "/mcp", &format!("{HEAD}{head}"), message.to_string().as_bytes())
}

/// Returns the messages of an event stream, or the single one.
fn messages(reply: &Reply) -> Vec<Value> {
    let text = reply.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let mut data: Vec<_> = data.filter(|data| !data.trim().is_empty()).collect();
    if data.is_empty() {
        data.push(&text);
    }
    data.into_iter().map(|data| serde_json::from_str(data).unwrap_or_else(|_| panic!("{text}"))).collect()
}

fn last(reply: &Reply) -> Value {
    messages(reply).pop().unwrap()
}

#[test]
fn sessions_belong_to_a_tenant_and_close_their_sandboxes() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let other = server.tenant("other", json!({}));
    let client = Client::start(&server, KEY);
    let ran = client.call("run_code", json!({"language": "python", "code": "print(6 * 7)"}));
    assert_eq!(ran["structuredContent"]["stdout"], "42\n", "{ran}");
    // It is recorded like every other execution.
    let id = ran["structuredContent"]["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("/v1/executions/{id}")).json()["stdout"], "42\n");

    let opened = client.call("sandbox_open", json!({}));
    let sandbox = opened["structuredContent"]["sandbox"].as_str().unwrap().to_owned();
    client.call("write_file", json!({"sandbox": sandbox, "path": "a.txt", "content": "kept"}));
    let resources = last(&client.send(&request(8, "resources/list", json!({}))));
    assert_eq!(resources["result"]["resources"][0]["name"], "a.txt", "{resources}");

    // Another tenant can access neither the session nor the sandbox, not even by id.
    let thief = Client { server: &server, key: other.clone(), session: client.session.clone() };
    assert_eq!(thief.send(&request(9, "tools/list", json!({}))).status, 404);
    assert_eq!(thief.end(), 404);
    let beside = Client::start(&server, &other);
    let read = beside.call("read_file", json!({"sandbox": sandbox, "path": "a.txt"}));
    assert_eq!(read["isError"], true, "{read}");

    assert_eq!(client.end(), 204);
    let path = format!("/v1/sandboxes/{sandbox}");
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while server.get(&path).json()["state"] != "ended" {
        assert!(std::time::Instant::now() < end, "the sandbox is still open after its session");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn keys_and_origins_are_checked_and_bodies_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), "max_body = \"64K\"\norigins = [\"https://app.example\"]");
    let list = request(1, "tools/list", json!({}));
    assert_eq!(post(&server, "wrong", "", &list).status, 401);
    for method in ["GET", "POST", "DELETE"] {
        let head = format!("{HEAD}Origin: https://evil.test\r\n");
        let reply = server.call_as(KEY, method, "/mcp", &head, list.to_string().as_bytes());
        assert_eq!((reply.status, reply.code().as_str()), (403, "foreign_origin"), "{method}");
    }
    let listed = server.call_as(
        KEY,
        "POST",
        "/mcp",
        &format!("{HEAD}Origin: https://app.example\r\n"),
        list.to_string().as_bytes(),
    );
    assert_ne!(listed.status, 403);
    assert_eq!(listed.header("access-control-allow-origin"), Some("https://app.example"));
    let long =
        request(1, "tools/call", json!({"name": "run_code", "arguments": {"code": "x".repeat(70_000)}}));
    assert_eq!(post(&server, KEY, "", &long).status, 413);
    let deep = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{}", "[".repeat(100));
    assert_eq!(server.call_as(KEY, "POST", "/mcp", HEAD, deep.as_bytes()).status, 422);
}

#[test]
fn sessions_per_tenant_are_limited() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let other = server.tenant("other", json!({}));
    let client = Client::start(&server, KEY);
    // Also under concurrent requests.
    let begun: usize = std::thread::scope(|scope| {
        let many = || (0..20).filter(|_| begin(&server, KEY).status == 200).count();
        let all: Vec<_> = (0..8).map(|_| scope.spawn(many)).collect();
        all.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(begun, 127);
    let refused = begin(&server, KEY);
    assert_eq!((refused.status, refused.code().as_str()), (429, "quota_exceeded"));
    assert!(
        refused.text().contains("the maximum of 128 MCP sessions is open; end one"),
        "{}",
        refused.text()
    );
    assert_eq!(begin(&server, &other).status, 200);
    // Open sessions keep working, and ending one makes room.
    assert_eq!(client.send(&request(2, "tools/list", json!({}))).status, 200);
    assert_eq!(client.end(), 204);
    assert_eq!((begin(&server, KEY).status, begin(&server, KEY).status), (200, 429));
}

#[test]
fn the_log_contains_neither_code_nor_keys() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut command = Command::new("sh");
    let line = "BELLJAR_LOG=trace exec \"$0\" serve --allow-degraded \"$@\" 2>\"$LOG\"";
    command.args(["-c", line, env!("CARGO_BIN_EXE_belljar")]).env("LOG", &log);
    let server = Server::by(command, folder.path());
    let client = Client::start(&server, KEY);
    let ran = client.call("run_code", json!({"language": "python", "code": "print('sec' + 'ret')"}));
    assert_eq!(ran["structuredContent"]["stdout"], "secret\n");
    assert_eq!(client.end(), 204);
    drop(server);
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("answered"), "{log}");
    for word in ["secret", "'sec'", KEY] {
        assert!(!log.contains(word), "{word} in {log}");
    }
}

#[test]
fn a_cancelled_call_over_http_leaves_nothing_running() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let client = Client::start(&server, KEY);
    let token = format!("62.{}", std::process::id());
    let input = json!({"command": format!("sleep {token}")});
    let call = request(5, "tools/call", json!({"name": "run_command", "arguments": input}));
    let head = format!("{HEAD}{}", client.head());
    let stream = server.send_as(KEY, "POST", "/mcp", &head, call.to_string().as_bytes());
    waits_for(&token);
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}});
    assert_eq!(client.send(&cancel).status, 202);
    assert_eq!(alive_with(&token, Duration::from_secs(60)), Vec::<String>::new());
    drop(stream);
}

#[test]
fn opening_a_sandbox_over_http_reports_installs() {
    let Some(installers) = packages("installers").filter(|_| everything()) else {
        return skip("packages of a sandbox over HTTP", "only with ./test --all");
    };
    let folder = tempfile::tempdir().unwrap();
    let mut command = belljar();
    let path = format!("{}:{}", installers.display(), std::env::var("PATH").unwrap());
    command.env("PATH", path).args(["serve", "--allow-degraded"]);
    let server = Server::by(command, folder.path());
    let reply = Client::start(&server, KEY).send(&request(5, "tools/call", furnished()));
    hears_of_the_install(&messages(&reply), &last(&reply));
}

#[test]
fn tool_calls_are_answered_in_the_callers_format() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let input = json!({"language": "python", "code": "print(6 * 7)"});
    let openai = json!({"id": "call_1", "type": "function",
        "function": {"name": "run_code", "arguments": input.to_string()}});
    let answer = server.post("/v1/tools/run_code", &openai).json();
    assert_eq!((&answer["role"], &answer["tool_call_id"]), (&json!("tool"), &json!("call_1")));
    assert!(answer["content"].as_str().unwrap().ends_with("stdout:\n42"), "{answer}");
    let anthropic = json!({"type": "tool_use", "id": "toolu_1", "name": "run_code", "input": input});
    let answer = server.post("/v1/tools/run_code", &anthropic).json();
    assert_eq!((&answer["type"], &answer["is_error"]), (&json!("tool_result"), &json!(false)));
    let plain = json!({"tool": "code_execution", "language": "python", "code": "print(6 * 7)"});
    let answer = server.post("/v1/tools/code_execution", &plain).json();
    assert_eq!(answer["structuredContent"]["stdout"], "42\n", "{answer}");
    // Errors that a model can fix are returned to it; errors of its caller are refused.
    let wrong = server.post("/v1/tools/run_code", &json!({"language": "klingon", "code": "x"}));
    assert_eq!((wrong.status, &wrong.json()["isError"]), (200, &json!(true)));
    assert_eq!(server.post("/v1/tools/nope", &input).status, 404);
    assert_eq!(server.post("/v1/tools/run_command", &anthropic).status, 422);
}
