//! Dialects: on the main port below their prefix, and at the root of a listener of their own.

use belljar_server::{DialectListener, Listeners, Settings};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::client::{HttpResponse, HttpTestClient};
use crate::harness::{ADMIN, ServerHarness, test_state};

const ACCEPT: &str = "Accept: application/json, text/event-stream\r\n";

fn initialize() -> Value {
    let info = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
}

async fn begin(client: &HttpTestClient, path: &str) -> HttpResponse {
    client.post_with(path, ACCEPT, &initialize()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dialect_has_its_prefix_and_its_own_listener() {
    let folder = tempfile::tempdir().unwrap();
    let state = test_state(folder.path(), Settings::default()).await;
    let [api, own] =
        [TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap()];
    let own_address = own.local_addr().unwrap();
    let dialects = vec![DialectListener::new("mcp", own).unwrap()];
    let server = ServerHarness::serve_on(Listeners { dialects, ..api.into() }, state, folder);
    let (main, own) = (server.client(), HttpTestClient::new(own_address, Some(ADMIN)));
    for (client, path) in [(&main, "/mcp"), (&own, "/")] {
        let begun = begin(client, path).await;
        assert_eq!(begun.status, 200, "{begun:?}");
        assert!(begun.header("mcp-session-id").is_some() && begun.text().contains("serverInfo"), "{begun:?}");
        // The protocol requires that the origin of every request is checked.
        let foreign = client.send("GET", path, &format!("{ACCEPT}Origin: https://evil.test\r\n"), b"").await;
        assert_eq!((foreign.status, foreign.code().as_str()), (403, "foreign_origin"), "{path}");
    }
    // Each listener serves only its own routes, and both ask for a key.
    for (client, path) in [(&main, "/"), (&own, "/mcp"), (&own, "/v1/executions"), (&own, "/metrics")] {
        let missing = client.get(path).await;
        assert_eq!((missing.status, missing.code().as_str()), (404, "not_found"), "{path}");
    }
    let keyless = begin(&HttpTestClient::new(own_address, None), "/").await;
    assert_eq!((keyless.status, keyless.code().as_str()), (401, "unauthorized"));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_known_dialects_have_listeners() {
    for name in ["v1", "nothing", ""] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refused = DialectListener::new(name, listener).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("dialect: no such dialect: '{name}'; known: mcp")), "{refused}");
    }
}

/// Whatever a tenant's program serves is served under this server's name.
#[tokio::test(flavor = "multi_thread")]
async fn ports_take_no_cookie_and_have_an_origin_of_their_own() {
    let server = ServerHarness::new().await;
    let path = "/v1/sandboxes/sbx_1/ports/80/";
    let cookies = format!("Cookie: key={ADMIN}; Authorization=Bearer {ADMIN}\r\nCookie: session={ADMIN}\r\n");
    for method in ["GET", "POST", "DELETE"] {
        let keyless = server.without_key().send(method, path, &cookies, b"").await;
        assert_eq!((keyless.status, keyless.code().as_str()), (401, "unauthorized"), "{method}");
        let unknown = server.client().send(method, path, &cookies, b"").await;
        assert_eq!((unknown.status, unknown.code().as_str()), (404, "not_found"), "{method}");
        for answer in [keyless, unknown] {
            let policy = answer.header("content-security-policy");
            assert_eq!(policy, Some("sandbox allow-scripts allow-forms"), "{answer:?}");
        }
    }
}
