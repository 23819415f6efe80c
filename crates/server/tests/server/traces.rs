//! Traces, as received by a collector.

use std::time::Duration;

use belljar_server::{Settings, TraceCollector};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::client::request;
use crate::harness::{ADMIN, ServerHarness};

const PATIENCE: Duration = Duration::from_secs(60);
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const ABOVE: &str = "b7ad6b7169203331";

async fn traced(endpoint: &str) -> ServerHarness {
    let collector: TraceCollector = endpoint.parse().unwrap();
    ServerHarness::with(|settings: &mut Settings| settings.collector = Some(collector)).await
}

/// Receives one export, answers with `status`, and returns the head and body.
async fn export(listener: &TcpListener, status: &str) -> (String, Value) {
    let (mut stream, _) = timeout(PATIENCE, listener.accept()).await.expect("no export in time").unwrap();
    let mut bytes = Vec::new();
    loop {
        assert_ne!(
            timeout(PATIENCE, stream.read_buf(&mut bytes)).await.expect("incomplete export").unwrap(),
            0
        );
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if bytes.len() == end + 4 + length.parse::<usize>().unwrap() {
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            return (head, serde_json::from_slice(&bytes[end + 4..]).unwrap());
        }
    }
}

/// Receives exports until there are `count` spans.
async fn spans(listener: &TcpListener, count: usize) -> Vec<Value> {
    let mut spans = Vec::new();
    while spans.len() < count {
        let (head, body) = export(listener, "200 OK").await;
        assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
        assert!(head.contains("content-type: application/json"), "{head}");
        assert_eq!(attribute(&body["resourceSpans"][0]["resource"], "service.name"), "belljar");
        spans.extend(body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone());
    }
    spans
}

fn attribute(of: &Value, key: &str) -> Value {
    let found = of["attributes"].as_array().unwrap().iter().find(|attribute| attribute["key"] == key);
    let value = found.unwrap_or_else(|| panic!("no {key}: {of}"))["value"].as_object().unwrap();
    value.values().next().unwrap().clone()
}

fn named<'a>(spans: &'a [Value], name: &str) -> &'a Value {
    spans.iter().find(|span| span["name"] == name).unwrap_or_else(|| panic!("no {name}: {spans:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_of_a_request_and_its_execution_contain_no_content() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = traced(&format!("http://{}", listener.local_addr().unwrap())).await;
    let mut body = request("print hush-code");
    body["metadata"] = json!({"hush-name": "hush-value"});
    body["env"] = json!({"HUSH": "hush-variable"});
    let headers = format!("traceparent: 00-{TRACE}-{ABOVE}-01\r\n");
    let answer = server.client().post_with("/v1/executions?hush-query", &headers, &body).await;
    assert_eq!(answer.status, 200);
    let spans = spans(&listener, 2).await;
    let (http, execution) = (named(&spans, "POST /v1/executions"), named(&spans, "execution"));
    assert_eq!(
        (&http["traceId"], &http["parentSpanId"], &http["kind"]),
        (&json!(TRACE), &json!(ABOVE), &json!(2))
    );
    assert_eq!((&execution["traceId"], &execution["parentSpanId"]), (&json!(TRACE), &http["spanId"]));
    assert_eq!(attribute(http, "http.response.status_code"), "200");
    assert_eq!(attribute(http, "belljar.request_id"), answer.header("x-request-id").unwrap());
    assert_eq!(attribute(http, "belljar.tenant"), "default");
    assert_eq!(attribute(execution, "belljar.execution_id"), answer.json()["id"]);
    for (key, value) in
        [("status", "succeeded"), ("language", "python"), ("warm", "pool"), ("tenant", "default")]
    {
        assert_eq!(attribute(execution, &format!("belljar.{key}")), value);
    }
    assert!(attribute(execution, "belljar.duration_ms").is_f64());
    let nanos = |span: &Value, key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
    for span in &spans {
        assert!(nanos(span, "startTimeUnixNano") <= nanos(span, "endTimeUnixNano"), "{span}");
    }
    let text = format!("{spans:?}").to_lowercase();
    assert!(!text.contains("hush") && !text.contains(ADMIN), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_executions_are_child_spans_and_are_flushed_on_shutdown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut server = traced(&format!("http://{}", listener.local_addr().unwrap())).await;
    let line = request("print x").to_string();
    let kind = "Content-Type: application/x-ndjson\r\n";
    let lines = format!("{line}\n{line}\n");
    assert_eq!(server.client().send("POST", "/v1/batches", kind, lines.as_bytes()).await.status, 200);
    let collecting = tokio::spawn(async move { spans(&listener, 3).await });
    server.stop();
    server.ended().await;
    assert!(collecting.is_finished(), "the server ended before its last spans were exported");
    let spans = collecting.await.unwrap();
    let batch = named(&spans, "POST /v1/batches");
    let below = |span: &&Value| span["name"] == "execution" && span["parentSpanId"] == batch["spanId"];
    assert_eq!(spans.iter().filter(below).count(), 2, "{spans:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unsampled_traces_are_not_exported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = traced(&format!("http://{}", listener.local_addr().unwrap())).await;
    let headers = format!("traceparent: 00-{TRACE}-{ABOVE}-00\r\n");
    assert_eq!(server.client().post_with("/v1/executions", &headers, &request("print x")).await.status, 200);
    server.client().get("/healthz").await;
    let spans = spans(&listener, 1).await;
    assert_eq!((spans.len(), &spans[0]["name"]), (1, &json!("GET /healthz")), "{spans:?}");
}

/// Tests a collector that is gone, one that refuses, and one that never responds.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_collector_does_not_affect_requests() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = gone.local_addr().unwrap();
    drop(gone);
    let mut server = traced(&format!("http://{address}")).await;
    assert_eq!(server.client().run("print x").await.status, 200);
    until_dropped(&server).await;
    server.stop();
    timeout(PATIENCE, server.ended()).await.expect("no shutdown in time");

    let refusing = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = traced(&format!("http://{}", refusing.local_addr().unwrap())).await;
    assert_eq!(server.client().run("print x").await.status, 200);
    export(&refusing, "503 Service Unavailable").await;
    until_dropped(&server).await;

    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut server = traced(&format!("http://{}", silent.local_addr().unwrap())).await;
    assert_eq!(server.client().run("print x").await.status, 200);
    let _held: TcpStream = silent.accept().await.unwrap().0;
    assert_eq!(server.client().run("print x").await.status, 200);
    server.stop();
    timeout(PATIENCE, server.ended()).await.expect("no shutdown in time");
}

async fn until_dropped(server: &ServerHarness) {
    let dropped = async {
        loop {
            let text = server.client().get("/metrics").await.text();
            let line = text.lines().find(|line| line.starts_with("belljar_spans_dropped_total "));
            if line.is_some_and(|line| !line.ends_with(" 0")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, dropped).await.expect("no dropped span in time");
}
