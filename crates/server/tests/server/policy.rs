//! Policies: a refusal is a result, and no request can loosen the policy an administrator set.

use serde_json::{Value, json};

use crate::client::{HttpResponse, HttpTestClient};
use crate::harness::ServerHarness;

const SHELL: &str = "import os\nos.system('ls')";

fn wiping() -> Value {
    json!({"language": "bash", "code": "rm -rf /", "metadata": {"a": 1}})
}

async fn put(client: &HttpTestClient, method: &str, path: &str, body: Value) -> HttpResponse {
    client.send(method, path, "Content-Type: application/json\r\n", body.to_string().as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_a_stored_result() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let answer = client.post("/v1/executions", &wiping()).await;
    let result = answer.json();
    assert_eq!((answer.status, &result["status"]), (200, &json!("refused")), "{result}");
    assert_eq!(result["error"], "Security validation failed: dangerous command 'rm' (line 1)");
    assert_eq!((&result["receipt"], &result["exit_code"]), (&Value::Null, &Value::Null));
    assert_eq!(result["metadata"], json!({"a": 1}));
    let finding = &result["findings"][0];
    assert_eq!((&finding["rule"], &finding["line"]), (&json!("SH-WIPE-ROOT"), &json!(1)));
    assert_eq!(finding["decided_by"], "balanced: categories.destructive-command = refuse");
    let kept = client.get(&format!("/v1/executions/{}", result["id"].as_str().unwrap())).await;
    assert_eq!(kept.json(), result);
    let list = client.get("/v1/executions?status=refused").await.json();
    assert_eq!(list["executions"].as_array().unwrap().len(), 1, "{list}");
    let metrics = client.get("/metrics").await.text();
    assert!(metrics.contains("status=\"refused\""), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_appear_in_repeats_batches_and_events() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let key = "Idempotency-Key: once\r\n";
    let first = client.post_with("/v1/executions", key, &wiping()).await;
    let again = client.post_with("/v1/executions", key, &wiping()).await;
    assert_eq!((first.json(), again.header("idempotency-replayed")), (again.json(), Some("true")));
    let events = client.post_with("/v1/executions", "Accept: text/event-stream\r\n", &wiping()).await.text();
    assert!(events.contains("event: result") && events.contains("\"status\":\"refused\""), "{events}");
    let lines = format!("{}\n{}\n", wiping(), json!({"language": "python", "code": "fail"}));
    let head = "Content-Type: application/x-ndjson\r\n";
    let answers = client.send("POST", "/v1/batches", head, lines.as_bytes()).await.text();
    assert!(
        answers.contains("\"status\":\"refused\"") && answers.contains("\"status\":\"failed\""),
        "{answers}"
    );
    let mut later = wiping();
    later["wait"] = json!(false);
    let accepted = client.post("/v1/executions", &later).await;
    assert_eq!(accepted.status, 202);
    let path = format!("/v1/executions/{}", accepted.json()["id"].as_str().unwrap());
    while client.get(&path).await.json()["status"] != "refused" {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_cannot_loosen_its_policy() {
    let server = ServerHarness::new().await;
    let (admin, ada) = (server.client(), server.tenant("ada", json!({})).await);
    let run = async |policy: &str| {
        let request = json!({"language": "python", "code": SHELL, "policy": policy});
        ada.post("/v1/executions", &request).await.json()["status"].clone()
    };
    assert_ne!(run("off").await, "refused");
    let set = async |policy: &str| put(&admin, "PATCH", "/v1/tenants/ada", json!({"policy": policy})).await;
    assert_eq!(set("lax").await.code(), "invalid_request");
    assert_eq!(set("strict").await.json()["policy"], "strict");
    assert_eq!(run("off").await, "refused");
    assert_eq!(set("off").await.status, 200);
    assert_ne!(run("off").await, "refused");
    assert_eq!(
        put(&admin, "PUT", "/v1/profiles/p", json!({"policy": "lax"})).await.code(),
        "invalid_request"
    );
    assert_eq!(put(&admin, "PUT", "/v1/profiles/p", json!({"policy": "strict"})).await.status, 200);
    let request = json!({"language": "python", "code": SHELL, "policy": "off", "profile": "p"});
    assert_eq!(ada.post("/v1/executions", &request).await.json()["status"], "refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_reports_findings_without_running() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let request = json!({"language": "python", "code": SHELL, "policy": "strict"});
    let checked = client.post("/v1/check", &request).await;
    let object = checked.json();
    assert_eq!((checked.status, &object["status"]), (200, &json!("refused")));
    assert_eq!(object["error"], "Security validation failed: dangerous call 'os.system' (line 2)");
    assert_eq!(object["findings"][0]["column"], 1);
    let request = json!({"language": "python", "code": SHELL});
    assert_eq!(
        client.post("/v1/check", &request).await.json(),
        json!({"status": "passed", "error": null, "findings": []})
    );
    let large = json!({"language": "python", "code": "x = 1\n".repeat(50_000), "policy": "strict"});
    let large = client.post("/v1/check", &large).await.json();
    assert_eq!(large["findings"][0]["rule"], "PY-UNREAD", "{large}");
    assert_eq!(client.post("/v1/check", &json!({"language": "python"})).await.status, 422);
    assert_eq!(
        client.post("/v1/check", &json!({"language": "python", "code": "1", "policy": "x"})).await.status,
        422
    );
    assert_eq!(server.without_key().post("/v1/check", &request).await.status, 401);
    let list = client.get("/v1/executions").await.json();
    assert_eq!(list["executions"], json!([]));
}
