//! Artifacts by reference: stored with their execution, shown to its tenant only, and deleted with it.

use std::time::Duration;

use belljar_store::Retention;
use serde_json::{Value, json};

use crate::client::request;
use crate::harness::ServerHarness;

const MEGABYTE: usize = 1 << 20;

async fn server() -> ServerHarness {
    ServerHarness::with(|settings| settings.inline_artifact_bytes = 100).await
}

#[tokio::test(flavor = "multi_thread")]
async fn large_artifacts_are_stored_beside_the_result() {
    let server = server().await;
    let client = server.client();
    let size = 3 * MEGABYTE + 7;
    let script = format!("artifact a/large.bin {size}\nartifact small.txt 60\nartifact b.txt 60\nprint hi");
    for wait in [true, false] {
        let mut body = request(&script);
        body["wait"] = json!(wait);
        let id = client.post("/v1/executions", &body).await.json()["id"].as_str().unwrap().to_owned();
        let result = ended(&client, &id).await;
        let urls: Vec<_> =
            result["artifacts"].as_array().unwrap().iter().map(|a| a["url"].as_str()).collect();
        let large = format!("/v1/executions/{id}/artifacts/a/large.bin");
        let second = format!("/v1/executions/{id}/artifacts/b.txt");
        assert_eq!(urls, [Some(large.as_str()), None, Some(second.as_str())]);
        let content = client.get(&large).await;
        assert_eq!((content.status, content.body.len()), (200, size));
        assert!(content.body.iter().all(|byte| *byte == b'x'));
        assert_eq!(client.get(&format!("/v1/executions/{id}/artifacts/small.txt")).await.body.len(), 60);
        assert_eq!(client.get(&format!("/v1/executions/{id}/artifacts/c")).await.status, 404);
    }
    let stored = client.get("/v1/tenants/default").await.json()["stored_bytes"].as_u64().unwrap();
    assert!(stored > 2 * size as u64, "{stored}");
}

async fn ended(client: &crate::client::HttpTestClient, id: &str) -> Value {
    loop {
        let result = client.get(&format!("/v1/executions/{id}")).await.json();
        if !["queued", "running"].contains(&result["status"].as_str().unwrap()) {
            return result;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_tenants_find_nothing() {
    let server = server().await;
    let result = server.client().run("artifact large 1000").await.json();
    let url = result["artifacts"][0]["url"].as_str().unwrap().to_owned();
    let other = server.tenant("other", json!({})).await;
    let (refused, unknown) =
        (other.get(&url).await, other.get("/v1/executions/exec_0/artifacts/large").await);
    assert_eq!((refused.status, refused.code()), (404, unknown.code()));
    assert_eq!(server.without_key().get(&url).await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_are_deleted_with_their_execution() {
    let server = ServerHarness::with(|settings| {
        settings.inline_artifact_bytes = 100;
        settings.retention = Retention { max_bytes: Some(4 * MEGABYTE as u64), ..Retention::default() };
    })
    .await;
    let client = server.client();
    let first = client.run(&format!("artifact large {}", 2 * MEGABYTE)).await.json();
    let url = first["artifacts"][0]["url"].as_str().unwrap().to_owned();
    assert_eq!(client.get(&url).await.status, 200);
    // Each counts with its artifacts, so a few exceed what is kept, and the oldest goes.
    while client.get(&url).await.status == 200 {
        assert_eq!(client.run(&format!("artifact large {MEGABYTE}")).await.status, 200);
    }
    assert_eq!(client.get(&format!("/v1/executions/{}", first["id"].as_str().unwrap())).await.status, 404);
}
