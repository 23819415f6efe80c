//! Deletion of tenants: what ends, what is deleted, what stays, and what a crash in between changes.

use std::time::Duration;

use belljar_server::Settings;
use belljar_store::Timestamp;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::client::{HttpTestClient, request};
use crate::harness::{ServerHarness, open_released_store, test_state};

const JSON: &str = "Content-Type: application/json\r\n";
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the bytes that arrive until the connection ends, also if it is reset.
async fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ended =
        timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the connection does not end");
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn audited(admin: &HttpTestClient, action: &str) -> Vec<Value> {
    let log = admin.get("/v1/audit?limit=200").await.json();
    let entries = log["entries"].as_array().unwrap().iter();
    entries.filter(|entry| entry["action"] == action && entry["target"] == "ada").cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_is_deleted_while_it_runs_something() {
    let server = ServerHarness::with(|settings| settings.concurrency = 1).await;
    let (admin, ada) = (server.client(), server.tenant("ada", json!({})).await);
    let bob = server.tenant("bob", json!({})).await;
    assert_eq!(ada.run("print secret").await.status, 200);
    let kept = bob.run("print mine").await.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(ada.post("/v1/volumes", &json!({"name": "data", "size_bytes": 1 << 20})).await.status, 201);
    let long = request("sleep 600000");
    let waiting = ada.start("POST", "/v1/executions", JSON, long.to_string().as_bytes()).await;
    ada.until_listed("status=running", 1).await;
    let events = format!("{JSON}Accept: text/event-stream\r\n");
    let following = ada.start("POST", "/v1/executions", &events, long.to_string().as_bytes()).await;
    ada.until_listed("status=queued", 1).await;
    let mut detached = long.clone();
    detached["wait"] = json!(false);
    assert_eq!(ada.post("/v1/executions", &detached).await.status, 202);
    // A request that is authenticated, but of which a part is missing.
    let body = request("print late").to_string();
    let head = ada.head("POST", "/v1/executions", &format!("{JSON}Content-Length: {}\r\n", body.len()));
    let mut late = ada.connect().await;
    late.write_all(head.as_bytes()).await.unwrap();

    assert_eq!(admin.delete("/v1/tenants/ada").await.status, 204);

    let _closed = late.write_all(body.as_bytes()).await;
    let answer = rest(late).await;
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    let why = "its tenant was disabled or deleted";
    let answer = rest(waiting).await;
    assert!(answer.starts_with("HTTP/1.1 401") && answer.contains(why), "{answer}");
    let events = rest(following).await;
    let last = events.split("event: ").last().unwrap();
    assert!(last.starts_with("error\n") && last.contains(why), "{events}");
    assert!(events.trim_end().ends_with('0'), "the answer is complete: {events}");
    assert_eq!(ada.run("print x").await.status, 401);
    assert_eq!(admin.get("/v1/tenants/ada").await.status, 404);
    assert_eq!(admin.delete("/v1/tenants/ada").await.status, 404);
    assert_eq!(
        (audited(&admin, "tenant.create").await.len(), audited(&admin, "key.create").await.len()),
        (1, 1)
    );
    let begun = audited(&admin, "tenant.remove").await;
    assert_eq!(
        (begun.len(), &begun[1]["outcome"], &begun[0]["outcome"]),
        (2, &json!("done"), &json!("failed"))
    );
    let completed = audited(&admin, "tenant.removed").await;
    assert_eq!(completed.len(), 1);
    assert_eq!(
        (&completed[0]["actor"], &completed[0]["detail"]),
        (&json!("server"), &json!("executions=4 sandboxes=0 volumes=1 snapshots=0"))
    );

    assert_eq!(bob.get(&format!("/v1/executions/{kept}")).await.status, 200);
    assert_eq!(bob.run("print x").await.status, 200, "the slot of the canceled execution is free");
    let again = server.tenant("ada", json!({})).await;
    assert_eq!(again.get("/v1/executions").await.json()["executions"], json!([]));
    assert_eq!(again.get("/v1/volumes").await.json()["volumes"], json!([]));
    assert_eq!(again.run("print x").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_deletion_is_completed_at_the_next_start() {
    let mut server = ServerHarness::new().await;
    let ada = server.tenant("ada", json!({})).await;
    assert_eq!(ada.run("print secret").await.status, 200);
    server.stop();
    let folder = server.ended().await;
    let store = open_released_store(&folder.path().join("belljar.db")).await;
    store.begin_tenant_deletion(&"ada".parse().unwrap(), Timestamp::now()).await.unwrap();
    store.close().await;

    let state = test_state(folder.path(), Settings::default()).await;
    let server = ServerHarness::serve(state, folder).await;
    let admin = server.client();
    let completed = async {
        while audited(&admin, "tenant.removed").await.is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, completed).await.expect("the deletion is not completed");
    assert_eq!(admin.get("/v1/tenants/ada").await.status, 404);
    let again = server.tenant("ada", json!({})).await;
    assert_eq!(again.get("/v1/executions").await.json()["executions"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_executions_are_deleted_and_running_ones_canceled() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let keyed =
        async || client.post_with("/v1/executions", "Idempotency-Key: k\r\n", &request("print x")).await;
    let done = keyed().await.json()["id"].as_str().unwrap().to_owned();
    let url = format!("/v1/executions/{done}");
    let refused = client.post(&format!("{url}/cancel"), &json!({})).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "conflict"));
    assert_eq!(client.get(&url).await.status, 200, "canceling deletes nothing");
    assert_eq!(client.delete(&url).await.status, 204);
    assert_eq!((client.get(&url).await.status, client.delete(&url).await.status), (404, 404));
    assert_eq!(client.get("/v1/executions").await.json()["executions"], json!([]));
    assert_eq!(client.get("/v1/tenants/default").await.json()["stored_bytes"], 0);
    assert!(keyed().await.header("idempotency-replayed").is_none(), "the key is free again");

    for by_cancel in [false, true] {
        let mut body = request("sleep 600000");
        body["wait"] = json!(false);
        let running = client.post("/v1/executions", &body).await.json()["id"].as_str().unwrap().to_owned();
        let url = format!("/v1/executions/{running}");
        let ended = match by_cancel {
            true => client.post(&format!("{url}/cancel"), &json!({})).await,
            false => client.delete(&url).await,
        };
        assert_eq!((ended.status, &ended.json()["status"]), (200, &json!("cancelled")));
        assert_eq!(client.get(&url).await.json()["status"], "cancelled", "its result is kept");
        assert_eq!(client.delete(&url).await.status, 204);
    }
}
