//! Attacks on the service that need no sandbox: ids of other tenants, unknown fields, header injection
//! through names. `cli/tests/abuse.rs` has the table of all attacks.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{HttpTestClient, request};
use crate::harness::ServerHarness;

const JSON: &str = "Content-Type: application/json\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_other_tenants_are_unknown() {
    let server = ServerHarness::new().await;
    let (ada, bob) = (server.tenant("ada", json!({})).await, server.tenant("bob", json!({})).await);
    let keyed = ada.post_with("/v1/executions", "Idempotency-Key: k\r\n", &request("print secret")).await;
    let done = keyed.json()["id"].as_str().unwrap().to_owned();
    let running = ada
        .post("/v1/executions", &json!({"language": "python", "code": "sleep 60000", "wait": false}))
        .await;
    let running = running.json()["id"].as_str().unwrap().to_owned();
    for id in [&done, &running] {
        for (method, headers) in [("GET", ""), ("GET", "Accept: text/event-stream\r\n"), ("DELETE", "")] {
            let theirs = bob.send(method, &format!("/v1/executions/{id}"), headers, b"").await;
            assert_eq!((theirs.status, theirs.code().as_str()), (404, "not_found"), "{method} {id}");
        }
        // 26 characters: a time, followed by 128 random bits.
        assert!(id.len() >= "exec_".len() + 26, "{id}");
    }
    let page = bob.get(&format!("/v1/executions?cursor={done}")).await;
    assert_eq!((page.status, &page.json()["executions"]), (200, &json!([])));
    // The same key and request of another tenant is another execution.
    let own = bob.post_with("/v1/executions", "Idempotency-Key: k\r\n", &request("print secret")).await;
    assert!(own.header("idempotency-replayed").is_none() && own.json()["id"] != done.as_str());
    assert_eq!(ada.delete(&format!("/v1/executions/{running}")).await.status, 200);
    let admin = server.client();
    let keys = admin.get("/v1/tenants/ada/keys").await.json();
    let key = keys["keys"][0]["id"].as_str().unwrap();
    assert_eq!(admin.delete(&format!("/v1/tenants/bob/keys/{key}")).await.status, 404);
    let rotated = admin.post(&format!("/v1/tenants/bob/keys/{key}/rotate"), &json!({})).await;
    assert_eq!((rotated.status, ada.run("print x").await.status), (404, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn host_settings_are_not_request_fields() {
    let server = ServerHarness::new().await;
    let ada = server.tenant("ada", json!({})).await;
    let with = |name: &str, value: Value| {
        let mut body = request("print x");
        body[name] = value;
        body
    };
    // Fields that would choose where to run, what to see of the host, what to be allowed, or whom to call.
    for name in [
        "mounts",
        "binds",
        "volumes",
        "workspace",
        "playground",
        "devices",
        "privileged",
        "cap_add",
        "pid",
        "ipc",
        "userns",
        "userns_mode",
        "security_opt",
        "seccomp",
        "annotations",
        "user",
        "uid",
        "tenant",
        "docker_host",
        "endpoint",
        "registry",
        "proxy",
        "webhook",
        "callback_url",
        "__proto__",
    ] {
        let refused = ada.post("/v1/executions", &with(name, json!("/"))).await;
        let message = refused.json()["error"]["message"].to_string();
        assert!(refused.status == 422 && message.contains("unknown field"), "{name}: {message}");
    }
    for (name, value) in [
        ("image", json!("/")),
        ("image", json!("../..")),
        ("image", json!("127.0.0.1:5000/evil:latest")),
        ("image", json!("http://169.254.169.254/")),
        ("provider", json!("tcp://127.0.0.1:2375")),
        ("profile", json!("../default")),
        ("network", json!({"mode": "host"})),
        ("network", json!({"mode": "hosts", "hosts": ["http://127.0.0.1"]})),
        ("network", json!({"mode": "hosts", "hosts": ["2130706433"]})),
        ("dependencies", json!({"packages": ["requests --index-url=http://evil.test"]})),
        ("require", json!(["-"])),
        ("policy", json!("none; rm -rf /")),
        ("language", json!("-c")),
        ("workdir", json!("../../etc")),
        ("workdir", json!("/etc\0")),
        ("env", json!({"A\0B": "c"})),
        ("env", json!({"": "c"})),
        ("limits", json!({"oom_score": 1})),
    ] {
        let refused = ada.post("/v1/executions", &with(name, value.clone())).await;
        assert_eq!(refused.status, 422, "{name}: {value}: {refused:?}");
        refused.code();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn file_names_stay_in_the_workspace() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let long = "a".repeat(4_097);
    for name in [
        "",
        ".",
        "..",
        "/",
        "//",
        "../a",
        "a/../../b",
        "a/..",
        "/etc/passwd",
        "/proc/self/environ",
        "a\0b",
        "a//b",
        "a/",
        "./a",
        &long,
    ] {
        let mut body = request("print x");
        body["files"] = json!([{"path": name, "content": "x"}]);
        let refused = client.post("/v1/executions", &body).await;
        assert_eq!((refused.status, refused.code().as_str()), (422, "invalid_request"), "{name:?}");
    }
    // Ordinary names: nothing decodes them, and there are no drives, streams or devices.
    for name in ["%2e%2e%2f", "%252e%252e", "..\\a", "C:x", "\u{ff0e}\u{ff0e}", "a.", "a ", "con", "..."] {
        let mut body = request("print x");
        body["files"] = json!([{"path": name, "content": "x"}]);
        assert_eq!(client.post("/v1/executions", &body).await.status, 200, "{name:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_cannot_inject_headers() {
    let server = ServerHarness::new().await;
    let client = server.client();
    for name in ["a\r\nX-Evil: 1", "a\nb", "a\0", "é", "", &"a".repeat(300)] {
        let tenant = client.post("/v1/tenants", &json!({"name": name})).await;
        assert_eq!((tenant.status, tenant.header("x-evil")), (422, None), "{name:?}");
    }
    let label = client.post("/v1/tenants/default/keys", &json!({"label": "a\r\nX-Evil: 1"})).await;
    assert_eq!(label.header("x-evil"), None);
    for path in ["/v1/profiles/a%0d%0aX-Evil:%201", "/v1/executions/a%0d%0aX-Evil:%201"] {
        let unknown = client.get(path).await;
        assert_eq!((unknown.status, unknown.header("x-evil")), (404, None));
    }
    let wanted = "Idempotency-Key: a\tb\r\n";
    assert_eq!(client.post_with("/v1/executions", wanted, &request("print x")).await.status, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn cross_site_requests_are_refused() {
    let server = ServerHarness::new().await;
    let admin = server.client();
    for (method, path) in [
        ("POST", "/v1/tenants"),
        ("PATCH", "/v1/tenants/default"),
        ("DELETE", "/v1/tenants/default"),
        ("POST", "/v1/tenants/default/keys"),
        ("PUT", "/v1/profiles/x"),
        ("POST", "/v1/executions"),
        ("POST", "/v1/batches"),
    ] {
        for origin in ["https://evil.test", "null", "http://127.0.0.1:1"] {
            let foreign = admin.send(method, path, &format!("{JSON}Origin: {origin}\r\n"), b"{}").await;
            assert_eq!((foreign.status, foreign.code().as_str()), (403, "foreign_origin"), "{path} {origin}");
        }
        if method != "DELETE" {
            // Content types that an HTML form can send without a preflight request.
            for kind in ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"]
            {
                let form = admin.send(method, path, &format!("Content-Type: {kind}\r\n"), b"{}").await;
                assert_eq!(form.status, 415, "{path} {kind}");
            }
        }
        // Browsers send cookies automatically, so cookies must not authenticate.
        let cookie = format!("{JSON}Cookie: key={}\r\n", crate::harness::ADMIN);
        let keyless = HttpTestClient::new(server.address, None).send(method, path, &cookie, b"{}").await;
        assert_eq!((keyless.status, keyless.header("set-cookie")), (401, None), "{path}");
    }
    assert_eq!(admin.get("/v1/tenants").await.header("access-control-allow-origin"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_contain_no_tenant_data() {
    let server = ServerHarness::new().await;
    let ada = server.tenant("ada-the-secretive", json!({})).await;
    let mut body = request("print hush-hush");
    body["metadata"] = json!({"patient": "zero"});
    let id = ada.post("/v1/executions", &body).await.json()["id"].as_str().unwrap().to_owned();
    ada.get("/v1/hush-hush").await;
    for path in ["/metrics", "/debug", "/debug/pprof", "/debug/vars"] {
        assert!([403, 404].contains(&ada.get(path).await.status), "{path}");
    }
    let text = server.client().get("/metrics").await.text();
    for secret in ["ada-the-secretive", "hush", "patient", "zero", id.as_str()] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_http_1_is_supported() {
    let server = ServerHarness::new().await;
    let client = server.client();
    let mut stream = client.connect().await;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    // The server answers no HTTP/2 frame and stops reading, so there is no stream to reset.
    let mut said = Vec::new();
    let _reset = stream.read_to_end(&mut said).await;
    assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 4"), "{said:?}");
    let upgrade =
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n";
    let same = client.send("GET", "/healthz", upgrade, b"").await;
    assert_eq!((same.status, same.header("upgrade")), (200, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn internal_errors_are_not_exposed() {
    let server = ServerHarness::new().await;
    let ada = server.tenant("ada", json!({})).await;
    let broken = ada.run("broken").await;
    assert_eq!((broken.status, broken.code().as_str()), (503, "setup_failed"));
    assert!(!broken.text().contains("secret"), "{}", broken.text());
    let kept = ada.get("/v1/executions").await;
    assert!(!kept.text().contains("/srv"), "{}", kept.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn idempotency_keys_survive_a_restart() {
    let mut server = ServerHarness::new().await;
    let post = async |client: HttpTestClient| {
        client.post_with("/v1/executions", "Idempotency-Key: k\r\n", &request("print once")).await
    };
    let first = post(server.client()).await;
    server.stop();
    let folder = server.ended().await;
    let state = crate::drain::reopened(folder.path()).await;
    let again = post(ServerHarness::serve(state, folder).await.client()).await;
    assert_eq!((again.json(), again.header("idempotency-replayed")), (first.json(), Some("true")));
}
