//! Shutdown, and restart after it.

use std::time::{Duration, Instant};

use belljar_server::Settings;
use serde_json::json;
use tokio::time::sleep;

use crate::client::{answer, request};
use crate::harness::{ServerHarness, test_state};

const JSON: &str = "Content-Type: application/json\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn running_work_finishes_during_shutdown() {
    let mut server = ServerHarness::new().await;
    let client = server.client();
    let body = request("sleep 3000\nprint done").to_string();
    let mut running = client.start("POST", "/v1/executions", JSON, body.as_bytes()).await;
    client.until_listed("status=running", 1).await;
    server.stop();
    let done = answer(&mut running).await;
    assert_eq!((done.status, done.json()["stdout"].as_str()), (200, Some("done\n")));
    server.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_canceled_and_recorded_after_the_drain_time() {
    let mut server = ServerHarness::with(|settings| settings.drain = Duration::from_millis(200)).await;
    let client = server.client();
    let mut body = request("sleep 30000");
    let mut running = client.start("POST", "/v1/executions", JSON, body.to_string().as_bytes()).await;
    body["wait"] = json!(false);
    let detached = client.post("/v1/executions", &body).await.json()["id"].as_str().unwrap().to_owned();
    client.until_listed("status=running", 2).await;
    let started = Instant::now();
    server.stop();
    assert_eq!(answer(&mut running).await.json()["status"], "cancelled");
    let folder = server.ended().await;
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    let again = ServerHarness::serve(reopened(folder.path()).await, folder).await;
    let kept = again.client().get(&format!("/v1/executions/{detached}")).await.json();
    assert_eq!(kept["status"], "cancelled");
}

/// Opens the state of an ended server again. Releasing its store may take a moment.
pub(crate) async fn reopened(folder: &std::path::Path) -> std::sync::Arc<belljar_server::AppState> {
    sleep(Duration::from_millis(300)).await;
    test_state(folder, Settings::default()).await
}
