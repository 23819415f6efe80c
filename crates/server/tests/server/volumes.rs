//! Volumes and snapshots, as far as they need no sandbox: names, owners, quotas.

use serde_json::{Value, json};

use crate::client::HttpTestClient;
use crate::harness::ServerHarness;

async fn make(client: &HttpTestClient, name: &str, size_bytes: u64) -> (u16, Value) {
    let made = client.post("/v1/volumes", &json!({"name": name, "size_bytes": size_bytes})).await;
    (made.status, made.json())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_without_a_size_has_the_default_size() {
    let server = ServerHarness::new().await;
    let made = server.client().post("/v1/volumes", &json!({"name": "data"})).await;
    assert_eq!((made.status, made.json()["size_bytes"].as_u64()), (201, Some(1 << 30)));
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_are_isolated_between_tenants() {
    let server = ServerHarness::new().await;
    let (ada, bob) = (server.tenant("ada", json!({})).await, server.tenant("bob", json!({})).await);
    let (status, volume) = make(&ada, "cache", 1 << 20).await;
    assert_eq!((status, &volume["size_bytes"], &volume["used_bytes"]), (201, &json!(1 << 20), &json!(0)));
    assert_eq!(ada.get("/v1/volumes").await.json()["volumes"][0]["name"], "cache");
    assert_eq!(ada.get("/v1/volumes/cache").await.json()["used_bytes"], 7);
    assert_eq!(ada.get("/v1/volumes").await.json()["volumes"][0]["used_bytes"], 7);
    assert_eq!(make(&ada, "cache", 1).await.0, 409);

    assert_eq!(bob.get("/v1/volumes").await.json(), json!({"volumes": []}));
    for name in ["cache", "nothing", "..", "A%20B"] {
        let path = format!("/v1/volumes/{name}");
        let seen = (bob.get(&path).await, bob.delete(&path).await);
        assert_eq!((seen.0.status, seen.1.status), (404, 404), "{name}");
        assert_eq!(seen.0.json()["error"]["message"], "no such volume");
    }
    assert_eq!(make(&bob, "cache", 1 << 20).await.0, 201, "names are not per tenant");
    assert_eq!(ada.delete("/v1/volumes/cache").await.status, 204);
    assert_eq!(ada.get("/v1/volumes/cache").await.status, 404);
    assert_eq!(bob.get("/v1/volumes/cache").await.status, 200);
    for (name, size) in [("", 1), ("../x", 1), ("A", 1), ("ok", 0)] {
        assert_eq!(make(&ada, name, size).await.0, 422, "{name}");
    }
    let odd = json!({"name": "x", "size_bytes": 1, "path": "/etc"});
    assert_eq!(ada.post("/v1/volumes", &odd).await.status, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_quotas_hold_under_concurrent_requests() {
    let server = ServerHarness::with(|settings| settings.tenant_disk = 100).await;
    let (ada, bob) =
        (server.tenant("ada", json!({"disk_bytes": 1000})).await, server.tenant("bob", json!({})).await);
    let ask = async |number: u32| make(&ada, &format!("v{number}"), 100).await.0;
    let asked = futures_util::future::join_all((0..20).map(ask)).await;
    let made = asked.iter().filter(|status| **status == 201).count();
    assert_eq!((made, asked.iter().filter(|status| **status == 429).count()), (10, 10));
    let (_, refused) = make(&ada, "more", 1).await;
    assert_eq!(refused["error"]["code"], "quota_exceeded");
    // A tenant without a quota of its own has the server's default.
    assert_eq!((make(&bob, "a", 101).await.0, make(&bob, "b", 100).await.0), (429, 201));
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_snapshots_are_404() {
    let server = ServerHarness::new().await;
    let ada = server.tenant("ada", json!({})).await;
    assert_eq!(ada.get("/v1/snapshots").await.json(), json!({"snapshots": []}));
    let id = "snap_000000000000000000000000000000000000";
    for id in [id, "x", ".."] {
        let path = format!("/v1/snapshots/{id}");
        assert_eq!((ada.get(&path).await.status, ada.delete(&path).await.status), (404, 404), "{id}");
    }
}
