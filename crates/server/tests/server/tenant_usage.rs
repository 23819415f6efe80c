//! What the server tells an administrator about the use of a tenant.

use serde_json::json;

use crate::client::request;
use crate::harness::ServerHarness;

#[tokio::test(flavor = "multi_thread")]
async fn usage_counts_work_and_stored_objects() {
    let server = ServerHarness::new().await;
    let (admin, ada) = (server.client(), server.tenant("ada", json!({"concurrency": 1})).await);
    assert_eq!(ada.run("cpu 1500").await.status, 200);
    assert_eq!(ada.post("/v1/volumes", &json!({"name": "data", "size_bytes": 1 << 20})).await.status, 201);
    let mut long = request("sleep 600000");
    long["wait"] = json!(false);
    for status in ["running", "queued"] {
        assert_eq!(ada.post("/v1/executions", &long).await.status, 202);
        ada.until_listed(&format!("status={status}"), 1).await;
    }
    let usage = admin.get("/v1/tenants/ada/usage").await.json();
    for (field, value) in [
        ("running_executions", 1),
        ("queued_executions", 1),
        ("sandboxes", 0),
        ("memory_bytes", 512 << 20),
        ("cpu_ms_today", 1_500),
        ("volumes", 1),
        ("snapshots", 0),
        ("disk_bytes", 1 << 20),
        ("stored_executions", 3),
        ("keys", 1),
    ] {
        assert_eq!(usage[field], value, "{field}: {usage}");
    }
    assert_eq!((&usage["quotas"]["concurrency"], &usage["quotas"]["sandboxes"]), (&json!(1), &json!(null)));
    assert!(usage["quotas"]["disk_bytes"].as_u64().unwrap() > 0, "the server's default");
    assert_eq!((&usage["days"][0]["executions"], &usage["days"][0]["cpu_ms"]), (&json!(1), &json!(1_500)));
    assert_eq!(usage["days"][0]["day"].as_str().unwrap().len(), "2026-11-19".len());
    for days in ["0", "367", "x"] {
        assert_eq!(admin.get(&format!("/v1/tenants/ada/usage?days={days}")).await.status, 422, "{days}");
    }
    assert_eq!(admin.get("/v1/tenants/nobody/usage").await.status, 404);
    assert_eq!(ada.get("/v1/tenants/ada/usage").await.status, 403);
}
