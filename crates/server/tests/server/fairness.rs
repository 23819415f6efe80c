//! Quotas, queues, and fairness between tenants.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::client::request;
use crate::harness::ServerHarness;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_429_and_does_not_affect_other_tenants() {
    let server = ServerHarness::with(|settings| (settings.concurrency, settings.queue) = (2, 2)).await;
    let greedy = server.tenant("greedy", json!({"concurrency": 1})).await;
    let modest = server.tenant("modest", json!({})).await;
    let long = request("sleep 60000").to_string();
    let json = "Content-Type: application/json\r\n";
    let mut streams = Vec::new();
    let count = async |status: &str| {
        let list = greedy.get(&format!("/v1/executions?status={status}")).await.json();
        list["executions"].as_array().unwrap().len()
    };
    for _ in 0..3 {
        streams.push(greedy.start("POST", "/v1/executions", json, long.as_bytes()).await);
    }
    while (count("running").await, count("queued").await) != (1, 2) {
        sleep(Duration::from_millis(5)).await;
    }
    let refused = greedy.run("print x").await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "too_many_requests"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(modest.run("print x").await.status, 200);
    assert_eq!(
        (count("running").await, count("queued").await),
        (1, 2),
        "modest waited for executions of greedy"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_used_up_cpu_quota_is_429_until_midnight() {
    let server = ServerHarness::new().await;
    let tenant = server.tenant("small", json!({"cpu_seconds_per_day": 2})).await;
    assert_eq!(tenant.run("cpu 1500").await.status, 200);
    assert_eq!(tenant.run("cpu 1500").await.status, 200);
    let refused = tenant.run("print x").await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "quota_exceeded"));
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=86_400).contains(&seconds));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_execution_can_be_canceled() {
    let server = ServerHarness::with(|settings| settings.concurrency = 1).await;
    let client = server.client();
    let mut body = request("sleep 60000");
    body["wait"] = json!(false);
    let first = client.post("/v1/executions", &body).await.json()["id"].as_str().unwrap().to_owned();
    let second = client.post("/v1/executions", &body).await.json()["id"].as_str().unwrap().to_owned();
    let cancelled = client.delete(&format!("/v1/executions/{second}")).await;
    assert_eq!((cancelled.status, &cancelled.json()["status"]), (200, &json!("cancelled")));
    assert_eq!(client.delete(&format!("/v1/executions/{first}")).await.status, 200);
    assert_eq!(client.run("print x").await.status, 200);
}
