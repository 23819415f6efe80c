//! The metrics listener.

use belljar_server::{Listeners, Settings};
use tokio::net::TcpListener;

use crate::client::HttpTestClient;
use crate::harness::{ServerHarness, test_state};

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_listener_serves_only_metrics_and_health_without_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let state = test_state(folder.path(), Settings::default()).await;
    let api = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let scraper = HttpTestClient::new(metrics.local_addr().unwrap(), None);
    let server = ServerHarness::serve_on(Listeners { metrics: Some(metrics), ..api.into() }, state, folder);
    server.client().run("print x").await;
    let text = scraper.get("/metrics").await.text();
    for line in [
        r#"belljar_executions_total{status="succeeded",language="python"} 1"#,
        "# TYPE belljar_executions_total counter",
        "# HELP belljar_executions_total Executions that ran",
        r#"belljar_execution_seconds_bucket{warm="pool",le="+Inf"} 1"#,
        r#"belljar_pools{runtime="python"} 2"#,
        r#"belljar_pool_sandboxes{runtime="python"} 4"#,
        r#"belljar_pool_hits{runtime="python"} 7"#,
        r#"belljar_pool_refill_seconds{runtime="python"} 0.0015"#,
        r#"belljar_pool_misses{runtime="node"} 0"#,
        "belljar_executions_waiting 0",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("secret"), "{text}");
    assert_eq!(scraper.get("/healthz").await.status, 200);
    for path in ["/v1/executions", "/openapi.json", "/docs", "/"] {
        assert_eq!(scraper.get(path).await.code(), "not_found", "{path}");
    }
    assert_eq!(scraper.send("POST", "/metrics", "", b"").await.code(), "method_not_allowed");
    assert_eq!(server.without_key().get("/metrics").await.status, 401);
}
