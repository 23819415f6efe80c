//! Malformed, oversized and slow requests, and requests from other sites.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{answer, request};
use crate::harness::ServerHarness;

const JSON: &str = "Content-Type: application/json\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_are_refused() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let deep = format!("{{\"metadata\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let twice = r#"{"language":"python","language":"python","code":""}"#;
    let infinite = r#"{"language":"python","code":"","limits":{"cpus":1e400}}"#;
    let lone = r#"{"language":"python","code":"\ud800"}"#;
    for body in ["", "null", "[]", "{", "\0", "{\"code\":", &deep, twice, infinite, lone] {
        let refused = client.send("POST", "/v1/executions", JSON, body.as_bytes()).await;
        let shown: String = body.chars().take(30).collect();
        assert_eq!((refused.status, refused.code().as_str()), (422, "invalid_request"), "{shown}");
    }
    let invalid = client.send("POST", "/v1/executions", JSON, b"{\"code\":\"\xff\"}").await;
    assert_eq!(invalid.status, 422);
    for kind in ["text/plain", "application/x-www-form-urlencoded"] {
        let headers = format!("Content-Type: {kind}\r\n");
        let refused = client.send("POST", "/v1/executions", &headers, b"{}").await;
        assert_eq!((refused.status, refused.code().as_str()), (415, "unsupported_media_type"));
    }
    let packed =
        client.send("POST", "/v1/executions", &format!("{JSON}Content-Encoding: gzip\r\n"), b"{}").await;
    assert_eq!(packed.status, 415);
}

#[tokio::test(flavor = "multi_thread")]
async fn deeply_nested_bodies_are_refused() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let nested = |depth: usize| {
        let lists = depth - 2;
        format!("{{\"metadata\":{{\"a\":{}{}}}}}", "[".repeat(lists), "]".repeat(lists))
    };
    for (method, path) in [
        ("POST", "/v1/executions"),
        ("POST", "/v1/tenants"),
        ("PATCH", "/v1/tenants/default"),
        ("POST", "/v1/tenants/default/keys"),
        ("PUT", "/v1/profiles/x"),
    ] {
        let deep = client.send(method, path, JSON, nested(65).as_bytes()).await;
        let message = "request: lists and objects are nested deeper than 64; flatten them";
        assert_eq!((deep.status, &deep.json()["error"]["message"]), (422, &message.into()), "{path}");
    }
    let mut fits: serde_json::Value = serde_json::from_str(&nested(64)).unwrap();
    fits["language"] = json!("python");
    fits["code"] = json!("print x");
    assert_eq!(client.post("/v1/executions", &fits).await.status, 200);
    let batch = client.send("POST", "/v1/batches", "", format!("{}\n{fits}\n", nested(65)).as_bytes()).await;
    assert!(batch.text().contains("nested deeper than 64") && batch.text().contains("succeeded"));
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_bodies_are_refused_before_they_are_read() {
    let server = ServerHarness::with(|settings| settings.max_body = 64 << 10).await;
    let client = server.client();
    let mut stream = client.connect().await;
    let head = client.head("POST", "/v1/executions", &format!("{JSON}Content-Length: {}\r\n", 1u64 << 30));
    stream.write_all(head.as_bytes()).await.unwrap();
    let refused = answer(&mut stream).await;
    assert_eq!((refused.status, refused.code().as_str()), (413, "too_large"));
    let mut stream = client.connect().await;
    let head = client.head("POST", "/v1/executions", &format!("{JSON}Transfer-Encoding: chunked\r\n"));
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("{:x}\r\n{}\r\n", 100 << 10, "x".repeat(100 << 10));
    stream.write_all(chunk.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.status, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_disconnected() {
    let server = ServerHarness::with(|settings| {
        settings.head_timeout = Duration::from_millis(300);
        settings.body_timeout = Duration::from_millis(300);
    })
    .await;
    let client = server.client();
    let started = Instant::now();
    let mut slow_head = client.connect().await;
    slow_head.write_all(b"GET /healthz HTTP/1.1\r\nHo").await.unwrap();
    let mut idle = client.connect().await;
    let mut slow_body = client.connect().await;
    let head = client.head("POST", "/v1/executions", &format!("{JSON}Content-Length: 100\r\n"));
    slow_body.write_all(format!("{head}{{").as_bytes()).await.unwrap();
    let refused = answer(&mut slow_body).await;
    assert_eq!((refused.status, refused.code().as_str()), (408, "request_timeout"));
    let mut rest = Vec::new();
    slow_head.read_to_end(&mut rest).await.unwrap();
    assert_eq!(idle.read_to_end(&mut rest).await.unwrap(), 0);
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_read_are_disconnected() {
    let server = ServerHarness::with(|settings| settings.body_timeout = Duration::from_millis(500)).await;
    let client = server.client();
    let mut body = request("flood 33554432\nsleep 30000");
    body["limits"] = json!({"output_bytes": 64 << 20});
    let headers = format!("{JSON}Accept: text/event-stream\r\n");
    let _silent = client.start("POST", "/v1/executions", &headers, body.to_string().as_bytes()).await;
    let end = Instant::now() + Duration::from_secs(60);
    while client.get("/v1/executions?status=cancelled").await.json()["executions"] == json!([]) {
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_origins_and_hosts_are_refused() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let body = request("print x");
    let foreign = client.post_with("/v1/executions", "Origin: https://evil.test\r\n", &body).await;
    assert_eq!((foreign.status, foreign.code().as_str()), (403, "foreign_origin"));
    let own = format!("Origin: http://{}\r\n", server.address);
    assert_eq!(client.post_with("/v1/executions", &own, &body).await.status, 200);
    // A WebSocket starts as a GET, but is not read-only.
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nOrigin: https://evil.test\r\n";
    let foreign = client.send("GET", "/v1/executions", upgrade, b"").await;
    assert_eq!((foreign.status, foreign.code().as_str()), (403, "foreign_origin"));
    let open = ServerHarness::with(|settings| settings.without_keys = true).await;
    let keyless = crate::client::HttpTestClient::new(open.address, None);
    assert_eq!(keyless.run("print x").await.status, 200);
    assert_eq!(keyless.get("/v1/tenants").await.status, 403);
    let mut stream = keyless.connect().await;
    stream
        .write_all(b"GET /v1/executions HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let rebound = answer(&mut stream).await;
    assert_eq!((rebound.status, rebound.code().as_str()), (421, "misdirected"));
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_are_not_normalized() {
    let server = ServerHarness::new().await;
    let client = server.client();
    for path in [
        "/v1/executions/..%2f..%2fetc%2fpasswd",
        "/v1/executions/%2e%2e",
        "/v1/executions/exec_%00",
        "/v1/executions/%ff",
        "/v1//executions",
        "/V1/executions",
        "/v1/executions/",
        "/debug/pprof",
    ] {
        let refused = client.get(path).await;
        assert!([404, 422].contains(&refused.status), "{path}: {}", refused.status);
        refused.code();
    }
    let wrong = client.send("PUT", "/v1/executions", JSON, b"{}").await;
    assert_eq!((wrong.status, wrong.code().as_str()), (405, "method_not_allowed"));
    let mut body = request("print x");
    body["metadata"] = json!({"a\r\nSet-Cookie: x": "b\r\nX-Evil: 1"});
    let ran = client.post("/v1/executions", &body).await;
    assert!(ran.status == 200 && ran.header("x-evil").is_none() && ran.header("set-cookie").is_none());
}
