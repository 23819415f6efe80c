//! Code checks: one tenant's complex code neither blocks another's checks, nor does it run unchecked.

use serde_json::{Value, json};

use crate::client::HttpTestClient;
use crate::harness::ServerHarness;

const SHELL: &str = "import os\nos.system('ls')";

/// Code of 32 KB per language that a parser once took half a minute to fold.
fn intricate() -> Vec<Value> {
    let python = format!("x{}", ".a()".repeat(8_000));
    let javascript = format!("'x'{}", ".toString()".repeat(2_900));
    let shell = format!("x={}\necho \"{}\"", "a".repeat(15_000), "$x".repeat(8_000));
    let code = [("python", python), ("javascript", javascript), ("bash", shell)];
    code.map(|(language, code)| json!({"language": language, "code": code})).to_vec()
}

async fn rules(client: &HttpTestClient, policy: &str) -> (Value, Vec<Value>) {
    let body = json!({"language": "python", "code": SHELL, "policy": policy});
    let answer = client.post("/v1/check", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let found = answer.json();
    let rules = found["findings"].as_array().unwrap().iter().map(|finding| finding["rule"].clone()).collect();
    (found["status"].clone(), rules)
}

#[tokio::test(flavor = "multi_thread")]
async fn complex_code_of_one_tenant_does_not_weaken_checks_of_another() {
    let server = ServerHarness::new().await;
    let mallory = server.tenant("mallory", json!({})).await;
    let bob = server.tenant("bob", json!({})).await;
    let json = "Content-Type: application/json\r\n";
    let mut streams = Vec::new();
    for body in intricate().iter().cycle().take(12) {
        streams.push(mallory.start("POST", "/v1/check", json, body.to_string().as_bytes()).await);
    }
    let (status, found) = rules(&bob, "strict").await;
    assert_eq!((status, &found), (json!("refused"), &vec![json!("PY-SHELL")]));
    let (status, found) = rules(&bob, "audit").await;
    assert_eq!(status, "passed");
    assert!(found.contains(&json!("PY-SHELL")), "{found:?}");
    let wiping = bob.post("/v1/executions", &json!({"language": "bash", "code": "rm -rf /"})).await.json();
    assert_eq!(wiping["findings"][0]["decided_by"], "balanced: categories.destructive-command = refuse");
    let plain = bob.post("/v1/executions", &json!({"language": "python", "code": "print x"})).await.json();
    assert_eq!(plain["status"], "succeeded");
    assert!(!plain.to_string().contains("not read"), "{plain}");
    // Mallory's own code is checked completely or reported as too complex; no check is abandoned.
    for body in intricate() {
        let answer = mallory.post("/v1/check", &body).await;
        assert_eq!(answer.status, 200);
        assert!(!answer.text().contains("takes too long"), "{}", answer.text());
    }
    let figures = server.client().get("/metrics").await.text();
    assert!(figures.contains("belljar_readings_failed_total{why=\"abandoned\"} 0"), "{figures}");
    assert!(figures.contains("belljar_readings_failed_total{why=\"refused\"} 0"), "{figures}");
}
