//! One program with many inputs: `POST /v1/executions` with `inputs`.

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::client::{HttpTestClient, request};
use crate::harness::ServerHarness;

const PATH: &str = "/v1/executions";
const LINES: &str = "Accept: application/x-ndjson\r\n";

/// A request with one script for the fake provider as the standard input of each input.
fn many(scripts: &[&str]) -> Value {
    let inputs: Vec<_> = scripts.iter().map(|script| json!({"stdin": script})).collect();
    json!({"language": "python", "code": "stdin", "inputs": inputs, "metadata": {"m": "1"}})
}

fn with(mut request: Value, field: &str, value: Value) -> Value {
    request[field] = value;
    request
}

/// Returns one field of every result.
fn each<'a>(results: &'a [Value], field: &str) -> Vec<&'a Value> {
    results.iter().map(|result| &result[field]).collect()
}

/// Starts a request whose results are lines, and waits for that of an input.
async fn start_until(
    client: &HttpTestClient,
    headers: &str,
    body: &Value,
    index: usize,
) -> (TcpStream, Vec<u8>) {
    let headers = format!("{LINES}{headers}Content-Type: application/json\r\n");
    let mut stream = client.start("POST", PATH, &headers, body.to_string().as_bytes()).await;
    let mut seen = Vec::new();
    let is_whole = |seen: &[u8]| {
        let text = String::from_utf8_lossy(seen);
        text.split_once(&format!("{{\"index\":{index},")).is_some_and(|(_, rest)| rest.contains('\n'))
    };
    while !is_whole(&seen) {
        assert!(stream.read_buf(&mut seen).await.unwrap() > 0, "{}", String::from_utf8_lossy(&seen));
    }
    (stream, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn results_are_an_object_lines_or_events() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let body = many(&["sleep 100\nprint 0", "print 1", "fail", "print 3"]);
    let answer = client.post(PATH, &body).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let results = answer.json()["results"].as_array().unwrap().clone();
    assert_eq!(each(&results, "index"), [0, 1, 2, 3]);
    assert_eq!(each(&results, "status"), ["succeeded", "succeeded", "failed", "succeeded"]);
    assert_eq!(each(&results, "stdout"), ["0\n", "1\n", "", "3\n"]);
    for result in &results {
        let mut stored = client.get(&format!("{PATH}/{}", result["id"].as_str().unwrap())).await.json();
        stored["index"] = result["index"].clone();
        assert_eq!((&stored, &stored["metadata"]), (result, &json!({"m": "1"})));
    }
    client.until_listed("metadata.m=1", 4).await;

    let text = client.post_with(PATH, LINES, &body).await.text();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.sort_by_key(|line| line["index"].as_u64());
    assert_eq!(each(&lines, "stdout"), ["0\n", "1\n", "", "3\n"]);

    let events = client.post_with(PATH, "Accept: text/event-stream\r\n", &body).await.text();
    assert_eq!(events.matches("event: result\ndata: {\"index\":").count(), 4, "{events}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_is_wrong_has_an_error_and_the_others_run() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let mut body = many(&["print 0", "", "broken", "print 3"]);
    body["inputs"][1] = json!({"files": [{"path": "../x", "content": ""}]});
    let results = client.post(PATH, &body).await.json()["results"].as_array().unwrap().clone();
    assert_eq!(each(&results, "stdout"), [&json!("0\n"), &Value::Null, &Value::Null, &json!("3\n")]);
    let error = |index: usize| (&results[index]["index"], &results[index]["error"]["code"]);
    assert_eq!(error(1), (&json!(1), &json!("invalid_request")));
    assert_eq!(error(2), (&json!(2), &json!("setup_failed")));
    let message = "files: '../x': '..' would leave the workspace";
    assert_eq!(results[1]["error"]["message"], message);
    client.until_listed("", 2).await;
    let events = client.post_with(PATH, "Accept: text/event-stream\r\n", &body).await.text();
    assert!(
        events.contains("event: error\ndata: {\"index\":1,\"error\":{\"code\":\"invalid_request\""),
        "{events}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_program_and_too_many_inputs_are_refused_as_a_whole() {
    let server = ServerHarness::with(|settings| settings.max_inputs = 3).await;
    let client = server.client();
    let refused = async |body: Value| {
        let answer = client.post(PATH, &body).await;
        (answer.status, answer.json()["error"]["message"].as_str().unwrap().to_owned())
    };
    let body = many(&["print 1", "print 2", "print 3"]);
    assert_eq!(client.post(PATH, &body).await.status, 200);
    let (status, message) = refused(many(&["print 1"; 4])).await;
    assert_eq!(status, 422);
    assert!(
        message.starts_with("inputs: 4 inputs are more than 3;") && message.contains("server.max_inputs")
    );
    assert!(refused(many(&[])).await.1.starts_with("inputs: is empty"));
    assert_eq!(refused(with(body.clone(), "jobs", json!(0))).await.1, "jobs: must be at least 1");
    assert!(refused(with(request("x"), "jobs", json!(1))).await.1.starts_with("jobs: "));
    assert!(refused(with(body.clone(), "language", json!("latin"))).await.1.starts_with("language: unknown"));
    assert!(refused(with(body.clone(), "gpus", json!("all"))).await.1.starts_with("gpus: provider 'native'"));
    assert!(
        refused(with(body.clone(), "inputs", json!([{"args": {}}]))).await.1.contains("unknown field `args`")
    );
    assert_eq!(client.post("/v1/check", &body).await.json()["status"], "passed");
    let line = client.send("POST", "/v1/batches", "", body.to_string().as_bytes()).await.text();
    assert!(line.contains("inputs: one program runs with many inputs by POST /v1/executions"), "{line}");
    client.until_listed("", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_stream_and_a_client_that_disconnects_cancels_the_rest() {
    let server = ServerHarness::with(|settings| settings.batch_jobs = 8).await;
    let client = server.client();
    let scripts = [&["print 0"][..], &["sleep 60000"; 50]].concat();
    let body = with(many(&scripts), "jobs", json!(2));
    let (stream, _) = start_until(&client, "", &body, 0).await;
    client.until_listed("status=running", 2).await;
    drop(stream);
    client.until_listed("status=cancelled", 2).await;
    client.until_listed("", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn early_results_are_read_again_in_their_turn() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let mut scripts = vec!["sleep 300\nflood 5"];
    scripts.extend(["flood 200000"; 5]);
    let answer = client.post(PATH, &many(&scripts)).await.json();
    let results = answer["results"].as_array().unwrap();
    let lengths: Vec<_> = results.iter().map(|result| result["stdout"].as_str().unwrap().len()).collect();
    assert_eq!(
        (each(results, "index").len(), lengths),
        (6, vec![5, 200_000, 200_000, 200_000, 200_000, 200_000])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_that_nobody_waits_for_are_queued_and_can_be_canceled() {
    let server = ServerHarness::with(|settings| settings.batch_jobs = 1).await;
    let client = server.client();
    let mut body = with(many(&["sleep 60000", "print 1", "print 2", ""]), "wait", json!(false));
    body["inputs"][3] = json!({"files": [{"path": "../x", "content": ""}]});
    let answer = client.post(PATH, &body).await;
    assert_eq!(answer.status, 202);
    let accepted = answer.json()["executions"].as_array().unwrap().clone();
    assert_eq!((each(&accepted, "index").len(), &accepted[2]["index"]), (4, &json!(2)));
    assert_eq!(each(&accepted, "status"), ["queued"; 4]);
    let path = |index: usize| format!("{PATH}/{}", accepted[index]["id"].as_str().unwrap());
    client.until_listed("status=running", 1).await;
    assert_eq!(client.get(&path(2)).await.json()["status"], "queued");
    // One that waits is canceled while another runs.
    let canceled = client.post(&format!("{}/cancel", path(2)), &json!({})).await;
    assert_eq!((canceled.status, &canceled.json()["status"]), (200, &json!("cancelled")));
    assert_eq!(client.get(&path(0)).await.json()["status"], "running");
    assert_eq!(client.post(&format!("{}/cancel", path(0)), &json!({})).await.json()["status"], "cancelled");
    client.until_listed("status=succeeded", 1).await;
    client.until_listed("status=failed", 1).await;
    assert_eq!(client.get(&path(1)).await.json()["stdout"], "1\n");
    let failed = client.get(&path(3)).await.json();
    assert_eq!(failed["error"], "files: '../x': '..' would leave the workspace");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_continues_where_the_first_one_ended() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let key = "Idempotency-Key: k\r\n";
    let body = with(many(&["print 0", "sleep 200\nprint 1", "print 2"]), "jobs", json!(1));
    let (stream, seen) = start_until(&client, key, &body, 0).await;
    client.until_listed("status=running", 1).await;
    drop(stream);
    let seen = String::from_utf8(seen).unwrap();
    let repeated = client.post_with(PATH, key, &body).await;
    assert_eq!(repeated.header("idempotency-replayed"), Some("true"));
    let results = repeated.json()["results"].as_array().unwrap().clone();
    assert_eq!(each(&results, "stdout"), ["0\n", "1\n", "2\n"]);
    assert!(seen.contains(results[0]["id"].as_str().unwrap()));
    // Nothing ran twice, and nothing was canceled.
    let again = client.post_with(PATH, key, &body).await.json();
    assert_eq!(each(again["results"].as_array().unwrap(), "id"), each(&results, "id"));
    client.until_listed("", 3).await;
    for other in [many(&["print 0"]), request("print 0"), with(many(&["print 0"]), "wait", json!(false))] {
        let conflict = client.post_with(PATH, key, &other).await;
        assert_eq!((conflict.status, conflict.code().as_str()), (409, "idempotency_conflict"), "{other}");
    }
    client.until_listed("", 3).await;

    let key = "Idempotency-Key: detached\r\n";
    let body = with(many(&["print 0", "print 1"]), "wait", json!(false));
    let first = client.post_with(PATH, key, &body).await;
    let again = client.post_with(PATH, key, &body).await;
    assert_eq!((first.status, again.status, first.json()), (202, 202, again.json()));
    let replayed = [&first, &again].map(|answer| answer.header("idempotency-replayed"));
    assert_eq!(replayed, [None, Some("true")]);
    client.until_listed("", 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_inputs_leave_other_tenants_their_turns_and_occupy_a_short_queue() {
    let server = ServerHarness::with(|settings| {
        (settings.concurrency, settings.queue, settings.batch_jobs) = (2, 2, 8);
    })
    .await;
    let (mallory, bob) = (server.tenant("mallory", json!({})).await, server.tenant("bob", json!({})).await);
    let scripts = vec!["sleep 20"; 2_000];
    let (stream, mut seen) = start_until(&mallory, "", &many(&scripts), 3).await;
    for _ in 0..3 {
        assert_eq!(bob.run("print hi").await.json()["stdout"], "hi\n");
    }
    let usage = server.client().get("/v1/tenants/mallory/usage").await.json();
    assert!(usage["queued_executions"].as_u64().unwrap() <= 2, "{usage}");
    let mut buffer = [0; 1 << 20];
    while let Ok(read @ 1..) = stream.try_read(&mut buffer) {
        seen.extend_from_slice(&buffer[..read]);
    }
    let finished = String::from_utf8_lossy(&seen).matches("{\"index\":").count();
    assert!(finished < scripts.len(), "bob waited for all of them");
    assert!(!String::from_utf8_lossy(&seen).contains("\"error\":{"), "a full queue is waited for");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_of_none_refuses_inputs_instead_of_waiting() {
    let server = ServerHarness::new().await;
    let nobody = server.tenant("nobody", json!({"concurrency": 0})).await;
    let results = nobody.post(PATH, &many(&["print 1"])).await.json();
    assert_eq!(results["results"][0]["error"]["code"], "too_many_requests");
}
