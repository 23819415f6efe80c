//! Providers over HTTP: settings survive restarts, secrets stay hidden, and failed changes break nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use belljar_server::{InitialProviderConfig, Settings};
use belljar_store::SealingKey;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::catalog::{FakeCatalog, providers};
use crate::client::{HttpResponse, HttpTestClient};
use crate::harness::{ServerHarness, test_state_with};
use crate::log;

const CONFIGURATION: &str = "/v1/providers/cloud/configuration";
const SECRET: &str = "hunter2-and-then-some";
const MASK: &str = "********";

struct ProviderHarness {
    server: ServerHarness,
    kinds: Arc<FakeCatalog>,
    key: String,
}

impl ProviderHarness {
    async fn new() -> Self {
        Self::on(tempfile::tempdir().unwrap(), SealingKey::generate().unwrap()).await
    }

    async fn on(folder: TempDir, key: String) -> Self {
        let kinds = Arc::new(FakeCatalog::default());
        let state =
            test_state_with(folder.path(), Settings::default(), providers(&kinds, &key)).await.unwrap();
        Self { server: ServerHarness::serve(state, folder).await, kinds, key }
    }

    /// Restarts the server on the same data, with this sealing key or the same one.
    async fn again(mut self, key: Option<&str>) -> Self {
        let key = key.map_or(self.key, str::to_owned);
        self.server.stop();
        Self::on(self.server.ended().await, key).await
    }

    fn client(&self) -> HttpTestClient {
        self.server.client()
    }
}

async fn put(client: &HttpTestClient, settings: Value) -> HttpResponse {
    put_with(client, json!({"settings": settings})).await
}

async fn put_with(client: &HttpTestClient, body: Value) -> HttpResponse {
    client.send_json("PUT", CONFIGURATION, body).await
}

async fn run(client: &HttpTestClient, provider: &str, code: &str) -> Value {
    let request = json!({"language": "python", "code": code, "provider": provider});
    client.post("/v1/executions", &request).await.json()
}

fn message(answer: &HttpResponse) -> String {
    answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_survive_a_restart_and_secrets_stay_hidden() {
    log::capture();
    let state = ProviderHarness::new().await;
    let client = state.client();
    let missing = client.get(CONFIGURATION).await;
    assert_eq!(
        (missing.status, run(&client, "cloud", "x").await["error"]["code"].as_str()),
        (404, Some("unsupported"))
    );
    let mut said = vec![put(&client, json!({"label": "one", "token": SECRET})).await];
    assert_eq!(said[0].status, 200, "{}", said[0].text());
    assert_eq!(said[0].json()["settings"], json!({"label": "one", "token": MASK}));
    assert_eq!(
        (&said[0].json()["version"], &said[0].json()["facts"]),
        (&json!(1), &json!({"region": "here"}))
    );
    // A mask keeps the secret, and a configuration can be sent back as it was returned.
    said.push(put(&client, json!({"label": "two", "token": MASK, "region": "here"})).await);
    assert_eq!(
        (state.kinds.cloud("two").token.as_str(), run(&client, "cloud", "x").await["stdout"].as_str()),
        (SECRET, Some("two"))
    );
    // A provider whose error contains its secret is masked, whether it is configured or only tested.
    let bad = json!({"settings": {"label": "down", "token": MASK}});
    said.push(put_with(&client, bad.clone()).await);
    said.push(client.post("/v1/providers/cloud/test", &bad).await);
    assert!(message(&said[2]).contains("token ******** is not accepted"), "{}", said[2].text());
    assert_eq!(said[3].json()["passed"], false);
    for path in [
        "/v1/providers",
        "/v1/providers/cloud/versions",
        CONFIGURATION,
        "/v1/audit",
        "/v1/providers/cloud/schema",
    ] {
        said.push(client.get(path).await);
    }
    assert!(said.iter().all(|answer| !answer.text().contains(SECRET)));
    let state = state.again(None).await;
    assert_eq!(state.kinds.cloud("two").token, SECRET);
    assert_eq!(run(&state.client(), "cloud", "x").await["stdout"], "two");
    assert!(log::captured().contains("provider.set") && !log::captured().contains(SECRET));
    let folder = state.server.folder.as_ref().unwrap().path().to_owned();
    for file in std::fs::read_dir(folder).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_update_changes_nothing() {
    let state = ProviderHarness::new().await;
    let client = state.client();
    assert_eq!(
        put(&client, json!({"label": "one", "token": MASK})).await.status,
        422,
        "a mask without a stored secret is accepted"
    );
    assert_eq!(put(&client, json!({"label": "one", "token": SECRET})).await.status, 200);
    for (settings, why) in [
        (
            json!({"label": "down", "token": SECRET}),
            "settings: the provider does not work with these settings; nothing was changed",
        ),
        (json!({"label": "two"}), "settings: token: is missing"),
        (json!({"label": "much too long", "token": SECRET}), "settings: label: must be at most 9 characters"),
        (json!({"label": "two", "token": SECRET, "pool": 9}), "settings: pool: must be at most 8"),
        (json!({"label": "two", "token": SECRET, "pol": 9}), "settings: pol: unknown setting; known: "),
        (json!({"label": "two", "token": [SECRET]}), "settings: token: must be string"),
        (json!({"label": "two", "token": SECRET, "region": "there"}), "settings: region: is read-only"),
    ] {
        let refused = put(&client, settings).await;
        assert_eq!((refused.status, refused.text().contains(SECRET)), (422, false));
        assert!(message(&refused).starts_with(why), "{why}: {}", refused.text());
        assert_eq!(run(&client, "cloud", "x").await["stdout"], "one");
    }
    let instead = json!({"settings": {"label": "two", "token": MASK}, "instead": ["nobody"]});
    let refused = put_with(&client, instead).await;
    assert_eq!(
        (refused.status, message(&refused)),
        (422, "provider: 'nobody' is not configured; configured: cloud, native".to_owned())
    );
    assert_eq!(client.get(CONFIGURATION).await.json()["version"], 1);
    assert_eq!(client.get("/v1/providers/nobody/schema").await.status, 422);
    let log = client.get("/v1/audit").await.text();
    assert!(log.contains("provider.set") && log.contains("\"failed\""), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_masked_secret_is_not_sent_to_another_destination() {
    let state = ProviderHarness::new().await;
    let client = state.client();
    let home = |label: &str, token: &str| json!({"label": label, "token": token, "domain": "cloud.example"});
    let away = |label: &str, token: &str| json!({"label": label, "token": token, "domain": "evil.example"});
    assert_eq!(put(&client, json!({"label": "one", "token": SECRET})).await.status, 200);
    // A test would send the secret, too.
    let tried = json!({"settings": away("evil", MASK)});
    for refused in
        [put(&client, away("evil", MASK)).await, client.post("/v1/providers/cloud/test", &tried).await]
    {
        assert_eq!(
            (refused.status, message(&refused)),
            (
                422,
                "settings: domain: would send 'token' to another destination; give 'token' itself instead of \
                 '********'"
                    .to_owned()
            )
        );
    }
    assert!(!state.kinds.has("evil"), "a refused configuration was built");
    assert_eq!(
        put(&client, home("two", MASK)).await.status,
        200,
        "the default destination, given explicitly"
    );
    assert_eq!(
        put(&client, away("three", "another-secret")).await.status,
        200,
        "another destination with a known secret"
    );
    assert_eq!(
        put(&client, json!({"label": "evil", "token": MASK})).await.status,
        422,
        "back to the first destination"
    );
    // An earlier version has its own secret, which goes to its own destination.
    let back = client.post("/v1/providers/cloud/rollback", &json!({"version": 1})).await;
    assert_eq!((back.status, &back.json()["settings"]["domain"]), (200, &Value::Null), "{}", back.text());
    assert_eq!(put(&client, away("evil", MASK)).await.status, 422);
    assert!(client.delete(CONFIGURATION).await.status == 204);
    let gone = put(&client, away("evil", MASK)).await;
    assert!(message(&gone).contains("but none is stored"), "{}", gone.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_apply_to_new_executions_only() {
    let state = ProviderHarness::new().await;
    let client = state.client();
    put(&client, json!({"label": "one", "token": SECRET})).await;
    let one = state.kinds.cloud("one");
    let request = json!({"language": "python", "code": "wait", "provider": "cloud", "wait": false});
    let id = client.post("/v1/executions", &request).await.json()["id"].as_str().unwrap().to_owned();
    while client.get(&format!("/v1/executions/{id}")).await.json()["status"] != "running" {
        tokio::task::yield_now().await;
    }
    assert_eq!(put(&client, json!({"label": "two", "token": MASK})).await.status, 200);
    assert_eq!(run(&client, "cloud", "x").await["stdout"], "two");
    assert!(!one.ended(), "the old provider ended during a run");
    one.go.add_permits(1);
    one.has_ended().await;
    // The result is written after the run has left the provider.
    client.until_listed("status=running", 0).await;
    assert_eq!(client.get(&format!("/v1/executions/{id}")).await.json()["stdout"], "one");
    let back = client.post("/v1/providers/cloud/rollback", &json!({"version": 1})).await;
    assert_eq!((back.status, &back.json()["version"]), (200, &json!(3)));
    assert_eq!(
        (run(&client, "cloud", "x").await["stdout"].as_str(), state.kinds.cloud("one").token.as_str()),
        (Some("one"), SECRET)
    );
    let versions = client.get("/v1/providers/cloud/versions").await.json();
    let labels: Vec<_> =
        versions["versions"].as_array().unwrap().iter().map(|one| &one["settings"]["label"]).collect();
    assert_eq!(labels, ["one", "two", "one"]);
    assert_eq!(versions["versions"][0]["changed_by"], "BELLJAR_ADMIN_KEY");
    assert_eq!(client.post("/v1/providers/cloud/rollback", &json!({"version": 9})).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_sealing_key_only_providers_with_secrets_fail() {
    let state = ProviderHarness::new().await;
    put(&state.client(), json!({"label": "one", "token": SECRET})).await;
    let right = state.key.clone();
    for (key, why) in [
        (SealingKey::generate().unwrap(), "sealed with another key"),
        (String::new(), "64 hexadecimal digits"),
    ] {
        let state = ProviderHarness::on(copy(&state), key).await;
        let client = state.client();
        assert_eq!(run(&client, "native", "print x").await["stdout"], "x\n");
        assert_eq!(run(&client, "cloud", "x").await["error"]["code"], "setup_failed");
        let tested = client.post("/v1/providers/cloud/test", &json!({})).await.json();
        assert!(tested["error"].as_str().unwrap().contains(why), "{tested}");
        let listed = client.get("/v1/providers").await.json();
        assert!(listed["providers"][0]["health"]["error"].as_str().unwrap().contains(why), "{listed}");
        assert!(message(&put(&client, json!({"label": "two", "token": MASK})).await).contains(why));
    }
    let state = state.again(Some(&right)).await;
    assert_eq!(run(&state.client(), "cloud", "x").await["stdout"], "one");
}

/// Copies the data, for another server to open.
fn copy(state: &ProviderHarness) -> TempDir {
    let (from, to) = (state.server.folder.as_ref().unwrap().path(), tempfile::tempdir().unwrap());
    for file in ["belljar.db", "belljar.db-wal"] {
        std::fs::copy(from.join(file), to.path().join(file)).unwrap();
    }
    to
}

#[tokio::test(flavor = "multi_thread")]
async fn request_profile_tenant_and_server_choose_the_provider_in_this_order() {
    let state = ProviderHarness::new().await;
    let (client, ada) = (state.client(), state.server.tenant("ada", json!({})).await);
    put_with(&client, json!({"settings": {"label": "one", "token": SECRET}, "instead": ["native"]})).await;
    let change = |body: Value| client.send_json("PATCH", "/v1/tenants/ada", body);
    assert_eq!(change(json!({"provider": "nobody"})).await.status, 422);
    assert_eq!(ada.run("print x").await.json()["receipt"]["provider"], "native");
    assert_eq!(change(json!({"provider": "cloud"})).await.json()["provider"], "cloud");
    assert_eq!(ada.run("x").await.json()["receipt"]["provider"], "cloud");
    assert_eq!(
        client.run("print x").await.json()["receipt"]["provider"],
        "native",
        "another tenant is affected"
    );
    assert_eq!(
        run(&ada, "native", "print x").await["receipt"]["provider"],
        "native",
        "the request takes precedence"
    );
    client.send_json("PUT", "/v1/profiles/own", json!({"provider": "native"})).await;
    let profiled = json!({"language": "python", "code": "print x", "profile": "own"});
    assert_eq!(ada.post("/v1/executions", &profiled).await.json()["receipt"]["provider"], "native");
    assert_eq!(
        change(json!({"quotas": {}})).await.json()["provider"],
        "cloud",
        "an absent field changed the provider"
    );
    assert_eq!(change(json!({"provider": null})).await.json()["provider"], Value::Null);
    assert_eq!(ada.run("print x").await.json()["receipt"]["provider"], "native");
    assert_eq!(
        client.post("/v1/providers/auto/activate", &json!({})).await.status,
        422,
        "`auto` was activated without a candidate"
    );
    assert_eq!(client.post("/v1/providers/cloud/activate", &json!({})).await.json()["usual"], "cloud");
    assert_eq!(ada.run("x").await.json()["receipt"]["provider"], "cloud");
    assert_eq!(client.delete(CONFIGURATION).await.status, 422, "the default provider was removed");
    let state = state.again(None).await;
    let client = state.client();
    assert_eq!(
        client.run("x").await.json()["receipt"]["provider"],
        "cloud",
        "the default changed after a restart"
    );
    client.post("/v1/providers/native/activate", &json!({})).await;
    assert_eq!(
        (client.delete(CONFIGURATION).await.status, client.get(CONFIGURATION).await.status),
        (204, 404)
    );
    assert_eq!(run(&client, "cloud", "x").await["error"]["code"], "unsupported");
    assert_eq!(client.post("/v1/providers/cloud/rollback", &json!({"version": 1})).await.status, 200);
    assert_eq!(run(&client, "cloud", "x").await["stdout"], "one");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_takes_precedence_over_the_configuration_file() {
    let (folder, kinds, key) =
        (tempfile::tempdir().unwrap(), Arc::new(FakeCatalog::default()), SealingKey::generate().unwrap());
    let seeded = |label: &str, token: Value| {
        let mut configured = providers(&kinds, &key);
        let settings = json!({"label": label, "token": token}).as_object().unwrap().clone();
        configured.seeds.insert("cloud".to_owned(), InitialProviderConfig { settings, instead: Vec::new() });
        configured.usual = "cloud".to_owned();
        configured
    };
    let start = async |configured| test_state_with(folder.path(), Settings::default(), configured).await;
    let wrong = start(seeded("one", json!([SECRET]))).await.unwrap_err().to_string();
    assert_eq!(wrong, "settings: token: must be string");
    drop(start(seeded("one", SECRET.into())).await.unwrap());
    // The store takes precedence, even over a configuration that is no longer valid.
    drop(start(seeded("one", Value::Null)).await.unwrap());
    let state = start(seeded("two", SECRET.into())).await.unwrap();
    let server = ServerHarness::serve(state, folder).await;
    let client = server.client();
    assert_eq!(client.run("x").await.json()["stdout"], "one");
    let shown = client.get(CONFIGURATION).await.json();
    assert_eq!((&shown["version"], &shown["changed_by"]), (&json!(1), &json!("configuration")));
    let tested = client.post("/v1/providers/cloud/test", &json!({})).await.json();
    assert_eq!((&tested["passed"], &tested["result"]["stdout"]), (&json!(true), &json!("one")));
    assert_eq!(server.tenant("ada", json!({})).await.get("/v1/providers").await.status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_cannot_run_anything_is_refused() {
    let state = ProviderHarness::new().await;
    let client = state.client();
    let refused = put(&client, json!({"label": "useless", "token": SECRET})).await;
    let why = message(&refused);
    assert!(
        refused.status == 422 && why.contains("nothing was changed: ") && why.contains("create a machine"),
        "{why}"
    );
    assert!(!why.contains(SECRET));
    assert_eq!(client.get(CONFIGURATION).await.status, 404);
    state.kinds.cloud("useless").has_ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_provider_is_replaced_by_its_fallback_at_once() {
    let state = ProviderHarness::new().await;
    let client = state.client();
    let ada = state.server.tenant("ada", json!({})).await;
    let body = |instead: Value| json!({"settings": {"label": "one", "token": SECRET}, "instead": instead});
    assert_eq!(put_with(&client, body(json!([]))).await.status, 200);
    let health = async || client.get("/v1/providers").await.json()["providers"][0]["health"].clone();
    assert_eq!(health().await["works"], true);
    state.kinds.cloud("one").breaks.store(true, Ordering::SeqCst);
    for _ in 0..6 {
        assert_eq!(run(&client, "cloud", "print x").await["error"]["code"], "setup_failed");
    }
    let broken = health().await;
    assert!(broken["failures_in_a_row"].as_u64().unwrap() >= 5 && broken["works"] == false, "{broken}");
    let why = broken["error"].as_str().unwrap();
    assert!(
        why.starts_with("the last 5 runs failed in a row: ") && why.contains("create a machine"),
        "{why}"
    );
    assert!(!why.contains(SECRET));

    assert_eq!(put_with(&client, body(json!(["native"]))).await.status, 200);
    state.kinds.cloud("one").breaks.store(true, Ordering::SeqCst);
    for client in [&ada, &client] {
        let receipt = run(client, "cloud", "print x").await["receipt"].clone();
        assert_eq!((&receipt["provider"], &receipt["instead_of"]), (&json!("native"), &json!("cloud")));
    }
    assert_eq!(health().await["failures_in_a_row"], 2);
    state.kinds.cloud("one").breaks.store(false, Ordering::SeqCst);
    assert_eq!(run(&ada, "cloud", "x").await["receipt"]["provider"], "cloud");
    assert_eq!(health().await["works"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_administrator_sees_the_cause_of_a_failed_set_up() {
    let state = ProviderHarness::new().await;
    let client = state.client();
    let ada = state.server.tenant("ada", json!({})).await;
    assert_eq!(put(&client, json!({"label": "one", "token": SECRET})).await.status, 200);
    state.kinds.cloud("one").breaks.store(true, Ordering::SeqCst);
    let request = json!({"language": "python", "code": "x", "provider": "cloud"});
    for (client, sees_cause) in [(&client, true), (&ada, false)] {
        let failed = client.post("/v1/executions", &request).await;
        assert_eq!((failed.status, failed.code().as_str()), (503, "setup_failed"));
        let mut detached = request.clone();
        detached["wait"] = json!(false);
        let id = client.post("/v1/executions", &detached).await.json()["id"].as_str().unwrap().to_owned();
        client.until_listed("status=failed", 1).await;
        let stored = client.get(&format!("/v1/executions/{id}")).await;
        let events = client.post_with("/v1/executions", "Accept: text/event-stream\r\n", &request).await;
        let stored_error = stored.json()["error"].as_str().unwrap().to_owned();
        for said in [message(&failed), stored_error, events.text()] {
            assert_eq!(said.contains("/srv/machines is full"), sees_cause, "{said}");
            assert!(
                sees_cause || said.contains("nothing ran. Try again later, or tell an administrator"),
                "{said}"
            );
            assert!(!said.contains(SECRET), "{said}");
        }
    }
}
