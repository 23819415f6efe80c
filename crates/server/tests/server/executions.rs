//! Running, showing, listing, canceling and repeating executions, and batches.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;

use crate::client::{HttpTestClient, request};
use crate::harness::ServerHarness;

#[tokio::test(flavor = "multi_thread")]
async fn program_outcomes_are_200_and_stored() {
    let server = ServerHarness::new().await;
    let client = server.client();
    for (script, status, exit) in [("print hi", "succeeded", 0), ("fail", "failed", 3)] {
        let ran = client.run(script).await;
        let result = ran.json();
        assert_eq!(
            (ran.status, &result["status"], &result["exit_code"]),
            (200, &json!(status), &json!(exit))
        );
        let kept = client.get(&format!("/v1/executions/{}", result["id"].as_str().unwrap())).await;
        assert_eq!((kept.status, kept.json()), (200, result));
    }
    let broken = server.tenant("ada", json!({})).await.run("broken").await;
    assert_eq!((broken.status, broken.code().as_str()), (503, "setup_failed"));
    assert!(!broken.text().contains("secret"), "{}", broken.text());
    let list = client.get("/v1/executions").await.json();
    assert_eq!(
        list["executions"].as_array().unwrap().len(),
        2,
        "an execution that did not run is listed: {list}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_are_refused_with_the_field_name() {
    let server = ServerHarness::new().await;
    let client = server.client();
    for (body, code, word) in [
        (json!({"language": "python", "cod": "x"}), "invalid_request", "unknown field `cod`"),
        (
            json!({"language": "python", "code": "", "mounts": ["/:/x"]}),
            "invalid_request",
            "unknown field `mounts`",
        ),
        (json!({"language": "klingon", "code": ""}), "unknown_language", "klingon"),
        (json!({"language": "python", "code": "", "profile": "x"}), "unknown_profile", "default"),
        (
            json!({"language": "python", "code": "", "limits": {"timeout_ms": 0}}),
            "invalid_limit",
            "timeout_ms",
        ),
        (json!({"language": "python", "code": "", "image": "/srv"}), "invalid_request", "image"),
        (
            json!({"language": "python", "code": "", "files": [{"path": "../x", "content": ""}]}),
            "invalid_request",
            "..",
        ),
    ] {
        let refused = client.post("/v1/executions", &body).await;
        assert_eq!((refused.status, refused.code().as_str()), (422, code), "{body}");
        assert!(refused.text().contains(word), "{}", refused.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_paged_and_filtered() {
    let server = ServerHarness::new().await;
    let client = server.client();
    for n in 0..5 {
        let mut body = request(if n == 4 { "fail" } else { "print x" });
        body["metadata"] = json!({"agent": format!("a{}", n % 2), "n": n});
        assert_eq!(client.post("/v1/executions", &body).await.status, 200);
    }
    let page = async |query: &str| client.get(&format!("/v1/executions?{query}")).await.json();
    let first = page("limit=3").await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = page(&format!("limit=3&cursor={cursor}")).await;
    assert_eq!(first["executions"].as_array().unwrap().len(), 3);
    assert_eq!((rest["executions"].as_array().unwrap().len(), &rest["next_cursor"]), (2, &Value::Null));
    assert_eq!(page("status=failed").await["executions"].as_array().unwrap().len(), 1);
    assert_eq!(page("metadata.agent=a1&language=py").await["executions"].as_array().unwrap().len(), 2);
    assert_eq!(page("metadata.agent=a0&metadata.n=4").await["executions"].as_array().unwrap().len(), 1);
    for wrong in ["limit=0", "limit=x", "status=done", "cursor=1", "who=me", "limit=%zz"] {
        let refused = client.get(&format!("/v1/executions?{wrong}")).await;
        assert_eq!((refused.status, refused.code().as_str()), (422, "invalid_request"), "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_streamed_while_the_program_runs() {
    let server = ServerHarness::new().await;
    let body = request("print one\nsleep 3000\nprint two").to_string();
    let headers = "Accept: text/event-stream\r\nContent-Type: application/json\r\n";
    let mut stream = server.client().start("POST", "/v1/executions", headers, body.as_bytes()).await;
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(r"one\n") {
        assert!(stream.read_buf(&mut seen).await.unwrap() > 0);
    }
    assert!(!String::from_utf8_lossy(&seen).contains("two"));
    stream.read_to_end(&mut seen).await.unwrap();
    let text = String::from_utf8(seen).unwrap();
    let order =
        ["event: output", r#"{"stream":"stdout","text":"one\n"}"#, r#""text":"two\n""#, "event: result"];
    let positions: Vec<_> =
        order.iter().map(|part| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"))).collect();
    assert!(positions.is_sorted(), "{text}");
    assert!(text.contains(r#""status":"succeeded""#));
}

/// Starts a detached execution and returns its id.
async fn detached(client: &HttpTestClient, script: &str) -> String {
    let mut body = request(script);
    body["wait"] = json!(false);
    let accepted = client.post("/v1/executions", &body).await;
    assert_eq!(accepted.status, 202, "{accepted:?}");
    let id = accepted.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(accepted.header("location"), Some(format!("/v1/executions/{id}").as_str()));
    id
}

async fn status(client: &HttpTestClient, id: &str) -> String {
    client.get(&format!("/v1/executions/{id}")).await.json()["status"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn detached_executions_can_be_polled_followed_and_canceled() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let id = detached(&client, "print early\nsleep 30000").await;
    assert_eq!(status(&client, &id).await, "running");
    let follow = format!("/v1/executions/{id}");
    let mut follower = client.start("GET", &follow, "Accept: text/event-stream\r\n", b"").await;
    let mut followed = Vec::new();
    while !String::from_utf8_lossy(&followed).contains("early") {
        assert!(follower.read_buf(&mut followed).await.unwrap() > 0);
    }
    let cancelled = client.delete(&follow).await;
    assert_eq!((cancelled.status, cancelled.json()["status"].as_str()), (200, Some("cancelled")));
    assert_eq!(cancelled.json()["stdout"], "early\n");
    follower.read_to_end(&mut followed).await.unwrap();
    let followed = String::from_utf8(followed).unwrap();
    assert!(followed.contains(r#""status":"cancelled""#), "{followed}");
    let again = client.post(&format!("{follow}/cancel"), &json!({})).await;
    assert_eq!((again.status, again.code().as_str()), (409, "conflict"));
    // The failure of a detached execution is stored, for a tenant without internal details.
    let client = server.tenant("ada", json!({})).await;
    let id = detached(&client, "broken").await;
    client.until_listed("status=failed", 1).await;
    let kept = client.get(&format!("/v1/executions/{id}")).await;
    assert_eq!(kept.json()["status"], "failed");
    assert!(
        kept.json()["error"].as_str().unwrap().contains("could not be set up")
            && !kept.text().contains("secret")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_runs_once() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let post = async |key: &str, script: &str| {
        client.post_with("/v1/executions", &format!("Idempotency-Key: {key}\r\n"), &request(script)).await
    };
    let (first, second) = tokio::join!(post("k1", "print x\nsleep 200"), post("k1", "print x\nsleep 200"));
    assert_eq!((first.status, second.status), (200, 200));
    assert_eq!(first.json(), second.json());
    let third = post("k1", "print x\nsleep 200").await;
    assert_eq!(third.json(), first.json());
    assert_eq!(third.header("idempotency-replayed"), Some("true"));
    let other = post("k1", "print y").await;
    assert_eq!((other.status, other.code().as_str()), (409, "idempotency_conflict"));
    let bad = post("", "print y").await;
    assert_eq!(bad.status, 422);
    // A request that never ran may be retried.
    assert_eq!(post("k2", "broken").await.status, 503);
    assert_eq!(post("k2", "broken").await.status, 503);
    assert_eq!(client.get("/v1/executions").await.json()["executions"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_is_canceled_when_its_client_disconnects() {
    let server = ServerHarness::new().await;
    let client = server.client();
    for accept in ["", "Accept: text/event-stream\r\n"] {
        let mut body = request("print x\nsleep 30000");
        body["metadata"] = json!({"accept": accept.len()});
        let headers = format!("{accept}Content-Type: application/json\r\n");
        let stream = client.start("POST", "/v1/executions", &headers, body.to_string().as_bytes()).await;
        client.until_listed(&format!("status=running&metadata.accept={}", accept.len()), 1).await;
        drop(stream);
        client.until_listed(&format!("status=cancelled&metadata.accept={}", accept.len()), 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_with_an_idempotency_key_outlives_its_client() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let (headers, body) = ("Idempotency-Key: k\r\n", request("sleep 300\nprint done"));
    let head = format!("{headers}Content-Type: application/json\r\n");
    drop(client.start("POST", "/v1/executions", &head, body.to_string().as_bytes()).await);
    sleep(Duration::from_millis(100)).await;
    let again = client.post_with("/v1/executions", headers, &body).await;
    assert_eq!((again.status, again.json()["stdout"].as_str()), (200, Some("done\n")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_streams_results_and_continues_after_an_invalid_line() {
    let server = ServerHarness::with(|settings| settings.max_body = 64 << 10).await;
    let client = server.client();
    let mut stream = client.connect().await;
    let head = client.head(
        "POST",
        "/v1/batches",
        "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n",
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let line = |script: &str| format!("{}\n", request(script));
    stream.write_all(chunk(&line("print 0")).as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("\"index\":0") {
        assert!(stream.read_buf(&mut seen).await.unwrap() > 0);
    }
    let rest =
        ["nope\n\n".to_owned(), "x".repeat(100 << 10) + "\n", line("fail"), request("print 4").to_string()];
    for text in rest {
        stream.write_all(chunk(&text).as_bytes()).await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    stream.read_to_end(&mut seen).await.unwrap();
    let text = String::from_utf8_lossy(&seen);
    let mut lines: Vec<Value> = text
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    lines.sort_by_key(|line| line["index"].as_u64());
    let shown: Vec<_> = lines
        .iter()
        .map(|line| line["status"].as_str().or(line["error"]["code"].as_str()).unwrap())
        .collect();
    assert_eq!(shown, ["succeeded", "invalid_request", "too_large", "failed", "succeeded"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_starts_early_when_much_is_written() {
    let server = ServerHarness::with(|settings| settings.retention.max_bytes = Some(2 << 20)).await;
    let client = server.client();
    for _ in 0..40 {
        assert_eq!(client.run("flood 200000").await.status, 200);
    }
    let stored = async || client.get("/v1/tenants/default").await.json()["stored_bytes"].as_u64().unwrap();
    for _ in 0..500 {
        if stored().await <= 2 << 20 {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("{} bytes are still stored", stored().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_canceled_when_its_client_disconnects() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let mut stream = client.connect().await;
    let head = client.head("POST", "/v1/batches", "Transfer-Encoding: chunked\r\n");
    let line = format!("{}\n", request("sleep 60000"));
    let chunk = format!("{head}{:x}\r\n{line}\r\n", line.len());
    stream.write_all(chunk.as_bytes()).await.unwrap();
    client.until_listed("status=running", 1).await;
    // In the middle of the body and without a reset, as when the client is killed.
    drop(stream);
    client.until_listed("status=cancelled", 1).await;
}
