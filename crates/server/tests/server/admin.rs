//! Tenants, keys, scopes, profiles, the audit log, and isolation between tenants.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{HttpTestClient, request};
use crate::harness::ServerHarness;

const JSON: &str = "Content-Type: application/json\r\n";
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn tenants_cannot_see_each_others_executions() {
    let server = ServerHarness::new().await;
    let (ada, bob) = (server.tenant("ada", json!({})).await, server.tenant("bob", json!({})).await);
    let id = ada.run("print secret").await.json()["id"].as_str().unwrap().to_owned();
    let unknown = id.replace(&id[id.len() - 4..], "0000");
    for (method, headers) in [("GET", ""), ("GET", "Accept: text/event-stream\r\n"), ("DELETE", "")] {
        let theirs = bob.send(method, &format!("/v1/executions/{id}"), headers, b"").await;
        let nobodys = bob.send(method, &format!("/v1/executions/{unknown}"), headers, b"").await;
        assert_eq!((theirs.status, nobodys.status), (404, 404));
        assert_eq!(theirs.json()["error"]["message"], nobodys.json()["error"]["message"]);
    }
    assert_eq!(bob.get("/v1/executions").await.json()["executions"], json!([]));
    assert_eq!(ada.get(&format!("/v1/executions/{id}")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_limited_to_their_scopes_and_can_be_revoked() {
    let server = ServerHarness::new().await;
    let (admin, ada) = (server.client(), server.tenant("ada", json!({})).await);
    for key in ["", "x", "bj_000000000000_0000000000000000000000000000000000000000000000000000"] {
        let refused = server.with_key(key).run("print x").await;
        assert_eq!((refused.status, refused.code().as_str()), (401, "unauthorized"));
    }
    assert_eq!(HttpTestClient::new(server.address, None).get("/v1/executions").await.status, 401);
    for path in ["/v1/tenants", "/v1/audit", "/metrics", "/v1/profiles", "/v1/tenants/ada/keys"] {
        let refused = ada.get(path).await;
        assert_eq!((refused.status, refused.code().as_str()), (403, "forbidden"), "{path}");
    }
    let keys = admin.get("/v1/tenants/ada/keys").await;
    assert!(!keys.text().contains("hash"));
    let id = keys.json()["keys"][0]["id"].as_str().unwrap().to_owned();
    let rotated = admin.post(&format!("/v1/tenants/ada/keys/{id}/rotate"), &json!({})).await;
    assert_eq!((rotated.status, ada.run("print x").await.status), (201, 401));
    let new = server.with_key(rotated.json()["key"].as_str().unwrap());
    assert_eq!(new.run("print x").await.status, 200);
    let id = rotated.json()["record"]["id"].as_str().unwrap().to_owned();
    assert_eq!(admin.delete(&format!("/v1/tenants/ada/keys/{id}")).await.status, 204);
    assert_eq!(new.run("print x").await.status, 401);
    let log = admin.get("/v1/audit").await.json();
    let acts: Vec<_> = log["entries"].as_array().unwrap().iter().map(words).collect();
    for act in [
        "tenant.create done",
        "key.create done",
        "key.rotate done",
        "key.revoke done",
        "GET /metrics refused",
    ] {
        assert!(acts.iter().any(|seen| seen == act), "{act}: {acts:?}");
    }
}

async fn until(stream: &mut TcpStream, text: &str) {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(text) {
        let read = timeout(PATIENCE, stream.read_buf(&mut seen)).await.expect("no output in time").unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
    }
}

async fn over(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // The connection may also be reset.
    let _ended =
        timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the connection does not end in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_end_when_their_key_is_revoked() {
    let server = ServerHarness::new().await;
    let (admin, ada, bob) =
        (server.client(), server.tenant("ada", json!({})).await, server.tenant("bob", json!({})).await);
    let follow = async |client: &HttpTestClient| {
        let body = request("print begun\nsleep 60000").to_string();
        let headers = format!("{JSON}Accept: text/event-stream\r\n");
        let mut stream = client.start("POST", "/v1/executions", &headers, body.as_bytes()).await;
        until(&mut stream, "begun").await;
        stream
    };
    let (mut revoked, mut disabled) = (follow(&ada).await, follow(&bob).await);
    let waiting = request("sleep 60000").to_string();
    let mut waiting = ada.start("POST", "/v1/executions", JSON, waiting.as_bytes()).await;
    let keys = admin.get("/v1/tenants/ada/keys").await.json();
    let key = keys["keys"][0]["id"].as_str().unwrap();
    assert_eq!(admin.delete(&format!("/v1/tenants/ada/keys/{key}")).await.status, 204);
    over(&mut revoked).await;
    over(&mut waiting).await;
    let others = disabled.try_read(&mut [0; 16]);
    assert!(others.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "{others:?}");
    admin.send("PATCH", "/v1/tenants/bob", JSON, br#"{"disabled": true}"#).await;
    over(&mut disabled).await;
    // A caller that rotates its own key receives the new one.
    let own = admin.post("/v1/tenants/default/keys", &json!({"scopes": ["admin"]})).await.json();
    let path = format!("/v1/tenants/default/keys/{}/rotate", own["record"]["id"].as_str().unwrap());
    let rotated = server.with_key(own["key"].as_str().unwrap()).post(&path, &json!({})).await;
    assert!(rotated.status == 201 && rotated.json()["key"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_actions_are_audited_when_the_client_disconnects() {
    let server = ServerHarness::new().await;
    let admin = server.client();
    // Some clients disconnect before the action starts, some during it, some after it; the last one stays.
    for number in 0..40 {
        let asked = admin.start("POST", "/v1/tenants/default/keys", JSON, b"{}").await;
        tokio::time::sleep(Duration::from_micros(100 * number)).await;
        drop(asked);
    }
    assert_eq!(admin.post("/v1/tenants/default/keys", &json!({})).await.status, 201);
    let (end, mut before) = (Instant::now() + PATIENCE, 0);
    loop {
        let made = admin.get("/v1/tenants/default/keys").await.json()["keys"].as_array().unwrap().len();
        let log = admin.get("/v1/audit?limit=200").await.json();
        let acts =
            log["entries"].as_array().unwrap().iter().filter(|entry| words(entry) == "key.create done");
        if made > 0 && made == before && acts.count() == made {
            return;
        }
        before = made;
        assert!(Instant::now() < end, "{made} keys, but the log has {log}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn words(entry: &Value) -> String {
    format!("{} {}", entry["action"].as_str().unwrap(), entry["outcome"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_are_changed_disabled_and_removed() {
    let server = ServerHarness::new().await;
    let (admin, ada) = (server.client(), server.tenant("ada", json!({})).await);
    assert_eq!(admin.post("/v1/tenants", &json!({"name": "ada"})).await.code(), "conflict");
    assert_eq!(admin.post("/v1/tenants", &json!({"name": "A B"})).await.status, 422);
    let change = |body: Value| body.to_string().into_bytes();
    let patch = async |body: Value| {
        admin.send("PATCH", "/v1/tenants/ada", "Content-Type: application/json\r\n", &change(body)).await
    };
    assert_eq!(patch(json!({"quotas": {"concurrency": 7}})).await.json()["quotas"]["concurrency"], 7);
    assert_eq!(patch(json!({"quota": {}})).await.status, 422);
    let quotas = async |change: Value| patch(json!({ "quotas": change })).await.json()["quotas"].clone();
    let all = json!({"concurrency": 7, "sandboxes": 2, "cpu_seconds_per_day": 3_600, "memory_bytes": 1 << 30,
        "disk_bytes": 1 << 20});
    let mut others = all.clone();
    others.as_object_mut().unwrap().remove("concurrency");
    assert_eq!(quotas(others).await, all, "a quota that is not named stays");
    assert_eq!(quotas(json!({})).await, all);
    let removed = quotas(json!({"sandboxes": null})).await;
    assert_eq!((&removed["sandboxes"], &removed["disk_bytes"]), (&Value::Null, &all["disk_bytes"]));
    assert_eq!(patch(json!({"quotas": {"disk_bytes": u64::MAX}})).await.status, 422);
    patch(json!({"disabled": true})).await;
    assert_eq!(ada.run("print x").await.status, 401);
    patch(json!({"disabled": false})).await;
    assert_eq!(ada.run("print x").await.status, 200);
    assert_eq!(admin.delete("/v1/tenants/ada").await.status, 204);
    assert_eq!(admin.delete("/v1/tenants/ada").await.status, 404);
    assert_eq!(admin.delete("/v1/tenants/nobody").await.status, 404);
    assert_eq!(admin.delete("/v1/tenants/default").await.code(), "conflict");
    assert_eq!(admin.get("/v1/tenants").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn profile_changes_apply_from_the_next_request() {
    let server = ServerHarness::new().await;
    let admin = server.client();
    let put = async |name: &str, body: Value| {
        let path = format!("/v1/profiles/{name}");
        admin.send("PUT", &path, "Content-Type: application/json\r\n", body.to_string().as_bytes()).await
    };
    let run = async || {
        let body = json!({"language": "python", "code": "print x", "profile": "tight"});
        admin.post("/v1/executions", &body).await.status
    };
    assert_eq!(run().await, 422);
    assert_eq!(put("tight", json!({"limits": {"timeout_ms": 1000}})).await.status, 200);
    assert_eq!(run().await, 200);
    assert_eq!(put("open", json!({"mounts": ["/:/host"]})).await.status, 422);
    assert_eq!(put("open", json!({"image": "/"})).await.status, 422);
    for useless in
        [json!({"network": {}}), json!({"network": {"mode": "some"}}), json!({"env": {"A=B": "c"}})]
    {
        assert_eq!(put("useless", useless).await.code(), "invalid_request");
    }
    assert_eq!(put("zero", json!({"limits": {"timeout_ms": 0}})).await.code(), "invalid_limit");
    assert_eq!(admin.delete("/v1/profiles/tight").await.status, 204);
    assert_eq!(run().await, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_metrics_and_openapi_are_served() {
    let server = ServerHarness::new().await;
    let nobody = HttpTestClient::new(server.address, None);
    assert_eq!(nobody.get("/healthz").await.json(), json!({"status": "live"}));
    for path in ["/healthz/ready", "/healthz?ready"] {
        assert_eq!(nobody.get(path).await.json(), json!({"status": "ready"}));
    }
    assert_eq!(nobody.get("/openapi.json").await.json()["info"]["title"], "Belljar");
    assert_eq!(nobody.get("/metrics").await.status, 401);
    server.client().run("print x").await;
    let text = server.client().get("/metrics").await.text();
    for line in [
        r#"belljar_executions_total{status="succeeded",language="python"} 1"#,
        r#"belljar_execution_seconds_count{warm="pool"} 1"#,
        r#"belljar_rejections_total{code="unauthorized"} 1"#,
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}
