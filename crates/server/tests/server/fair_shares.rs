//! With default settings, no tenant keeps another from slots, connections, streams or memory for bodies.

use std::time::{Duration, Instant};

use belljar_server::Settings;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{HttpTestClient, answer, request};
use crate::harness::ServerHarness;

const JSON: &str = "Content-Type: application/json\r\n";
const EVENTS: &str = "Accept: text/event-stream\r\n";

async fn server(change: impl FnOnce(&mut Settings)) -> (ServerHarness, HttpTestClient, HttpTestClient) {
    let server = ServerHarness::with(change).await;
    let (mallory, bob) = (server.tenant("mallory", json!({})).await, server.tenant("bob", json!({})).await);
    (server, mallory, bob)
}

/// Starts a detached script, and returns the status of the response and the path of the execution.
async fn detach(client: &HttpTestClient, script: &str, timeout_ms: u64) -> (u16, String) {
    let mut body = request(script);
    body["wait"] = json!(false);
    body["limits"] = json!({"timeout_ms": timeout_ms});
    let answer = client.post("/v1/executions", &body).await;
    (answer.status, format!("/v1/executions/{}", answer.json()["id"].as_str().unwrap_or_default()))
}

/// Reads the status of a response that may still be in progress.
async fn status(stream: &mut TcpStream) -> u16 {
    let mut head = Vec::new();
    while head.len() < 12 {
        let mut piece = [0; 12];
        let count = stream.read(&mut piece).await.unwrap();
        assert!(count > 0, "closed without a response");
        head.extend_from_slice(&piece[..count]);
    }
    String::from_utf8_lossy(&head[9..12]).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_tenant_in_all_slots_does_not_delay_another() {
    let (_server, mallory, bob) = server(|settings| settings.concurrency = 8).await;
    for _ in 0..20 {
        assert_eq!(detach(&mallory, "sleep 600000", 30_000).await.0, 202);
    }
    mallory.until_listed("status=running", 8).await;
    // None of mallory's executions ends before this response.
    assert_eq!(bob.run("print x").await.json()["stdout"], "x\n");
    mallory.until_listed("status=queued", 12).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn executions_with_a_long_time_limit_get_half_of_the_slots() {
    let (_server, mallory, bob) = server(|settings| settings.concurrency = 8).await;
    for _ in 0..8 {
        assert_eq!(detach(&mallory, "sleep 600000", 3_600_000).await.0, 202);
    }
    mallory.until_listed("status=running", 4).await;
    for _ in 0..4 {
        assert_eq!(detach(&bob, "sleep 600000", 3_600_000).await.0, 202);
    }
    bob.until_listed("status=running", 4).await;
    mallory.until_listed("status=queued", 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_raises_a_tenants_share() {
    let server = ServerHarness::with(|settings| settings.concurrency = 8).await;
    let trusted = server.tenant("trusted", json!({"concurrency": 7})).await;
    for _ in 0..8 {
        assert_eq!(detach(&trusted, "sleep 600000", 3_600_000).await.0, 202);
    }
    trusted.until_listed("status=running", 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_tenant_uses_all_slots() {
    let server = ServerHarness::with(|settings| settings.concurrency = 8).await;
    let client = server.client();
    for _ in 0..9 {
        assert_eq!(detach(&client, "sleep 600000", 3_600_000).await.0, 202);
    }
    client.until_listed("status=running", 8).await;
    client.until_listed("status=queued", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn announced_bodies_reserve_no_memory() {
    let (_server, mallory, bob) = server(|_| {}).await;
    let mut idle = Vec::new();
    for _ in 0..8 {
        let announced = format!("{JSON}Content-Length: 33554432\r\nExpect: 100-continue\r\n");
        let mut stream = mallory.connect().await;
        stream.write_all(mallory.head("POST", "/v1/executions", &announced).as_bytes()).await.unwrap();
        // The server has read the head and waits for the body.
        assert_eq!(status(&mut stream).await, 100);
        idle.push(stream);
    }
    assert_eq!(bob.run("print x").await.status, 200);
    assert_eq!(mallory.run("print x").await.status, 200);
}

/// Sends a body of 60 KB without its last byte.
async fn unfinished(client: &HttpTestClient) -> TcpStream {
    let head = client.head("POST", "/v1/executions", &format!("{JSON}Content-Length: 60001\r\n"));
    let mut stream = client.connect().await;
    // A refused request may be reset before its end.
    let _ = stream.write_all(&[head.as_bytes(), &[b' '; 60_000]].concat()).await;
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn arriving_bodies_leave_the_reserve_to_other_tenants() {
    let (server, mallory, bob) = server(|settings| {
        (settings.max_body, settings.bodies_total) = (64 << 10, 256 << 10);
    })
    .await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(unfinished(&mallory).await);
    }
    let refused = async || {
        let text = server.client().get("/metrics").await.text();
        !text.contains(r#"belljar_share_refusals_total{kind="bodies"} 0"#)
    };
    let end = Instant::now() + Duration::from_secs(20);
    while !refused().await {
        assert!(Instant::now() < end, "no request of mallory was refused");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let large = format!("print x\n{}", "#".repeat(50_000));
    assert_eq!(bob.run(&large).await.status, 200);
    drop(streams);
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_requests_do_not_hold_body_memory() {
    let (_server, mallory, bob) = server(|settings| {
        (settings.concurrency, settings.max_body, settings.bodies_total) = (2, 64 << 10, 256 << 10);
    })
    .await;
    let large = format!("sleep 600000\n{}", "#".repeat(50_000));
    let mut statuses = Vec::new();
    for _ in 0..10 {
        statuses.push(detach(&mallory, &large, 30_000).await.0);
    }
    // Mallory gets at most half of 192 KB, so the last requests must be refused.
    assert_eq!((statuses[0], statuses[9]), (202, 429), "{statuses:?}");
    let large = format!("print x\n{}", "#".repeat(50_000));
    assert_eq!(bob.run(&large).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn event_streams_of_one_tenant_leave_connections_to_other_tenants() {
    let (server, mallory, bob) = server(|settings| settings.connections = 32).await;
    let (_, path) = detach(&mallory, "sleep 600000", 30_000).await;
    let (mut streams, mut served) = (Vec::new(), 0);
    for _ in 0..32 {
        let mut stream = mallory.start("GET", &path, EVENTS, b"").await;
        served += usize::from(status(&mut stream).await == 200);
        streams.push(stream);
    }
    assert_eq!(bob.run("print x").await.json()["stdout"], "x\n");
    // Half of three quarters of the 16 streams that 32 connections allow.
    assert_eq!(served, 6);
    let text = server.client().get("/metrics").await.text();
    assert!(!text.contains(r#"belljar_share_refusals_total{kind="streams"} 0"#), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_of_one_tenant_leave_connections_to_other_tenants() {
    let (_server, mallory, bob) = server(|settings| {
        (settings.connections, settings.head_timeout) = (32, Duration::from_secs(600));
    })
    .await;
    let (mut kept, mut served) = (Vec::new(), 0);
    for _ in 0..32 {
        let head = mallory.head("GET", "/v1/executions", "").replace("Connection: close\r\n", "");
        let mut stream = mallory.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        served += usize::from(status(&mut stream).await == 200);
        kept.push(stream);
    }
    assert_eq!(served, 12);
    assert_eq!(bob.run("print x").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_of_an_address_are_evicted() {
    let (server, _, bob) = server(|settings| {
        (settings.connections, settings.head_timeout) = (32, Duration::from_secs(600));
    })
    .await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(bob.connect().await);
    }
    assert_eq!(bob.run("print x").await.status, 200);
    // The oldest connections were closed.
    assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap_or(0), 0);
    let text = server.client().get("/metrics").await.text();
    assert!(!text.contains(r#"belljar_share_refusals_total{kind="keyless_connections"} 0"#), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_per_tenant_are_limited() {
    let (_server, mallory, bob) = server(|settings| settings.tenant_streams = 2).await;
    let (_, path) = detach(&mallory, "sleep 600000", 30_000).await;
    let mut first = mallory.start("GET", &path, EVENTS, b"").await;
    let mut second = mallory.start("GET", &path, EVENTS, b"").await;
    assert_eq!((status(&mut first).await, status(&mut second).await), (200, 200));
    let refused = mallory.send("GET", &path, EVENTS, b"").await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "too_many_requests"));
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("its share of the streams") && message.contains("(2)"), "{message}");
    assert_eq!(refused.header("retry-after"), Some("1"));
    // A request whose stream is refused starts no execution either.
    let new = mallory.send("POST", "/v1/executions", &format!("{JSON}{EVENTS}"), b"{}").await;
    let batch = mallory.send("POST", "/v1/batches", "", request("print x").to_string().as_bytes()).await;
    assert_eq!((new.status, batch.status), (429, 429));
    assert_eq!(
        bob.send("POST", "/v1/batches", "", request("print x").to_string().as_bytes()).await.status,
        200
    );
    drop(first);
    let mut again = mallory.start("GET", &path, EVENTS, b"").await;
    let mut waited = status(&mut again).await;
    while waited == 429 {
        again = mallory.start("GET", &path, EVENTS, b"").await;
        waited = status(&mut again).await;
    }
    assert_eq!(waited, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_body_loses_its_connection() {
    let (_server, mallory, _) = server(|settings| settings.body_timeout = Duration::from_millis(300)).await;
    let mut stalled = unfinished(&mallory).await;
    let refused = answer(&mut stalled).await;
    assert_eq!((refused.status, refused.code().as_str()), (408, "request_timeout"));
    let listed: Value = mallory.get("/v1/executions").await.json();
    assert_eq!(listed["executions"], json!([]));
}
