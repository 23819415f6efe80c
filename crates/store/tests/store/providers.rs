//! Versions of provider settings.

use belljar_store::{ProviderContent, SealingKey};
use serde_json::json;

use crate::common::{object, test_store, timestamp};

#[tokio::test]
async fn the_newest_version_is_used_and_a_hundred_are_kept() {
    let fixture = test_store().await;
    let key: SealingKey = SealingKey::generate().unwrap().parse().unwrap();
    let content = |pool: u32| ProviderContent {
        settings: Some(object(json!({"pool": pool, "token": "********"}))),
        fallbacks: vec!["native".to_owned()],
        sealed: Some(key.seal("docker", format!("hunter{pool}").as_bytes()).unwrap()),
    };
    for pool in 1..=103 {
        let version =
            fixture.store.add_provider_version("docker", content(pool), "ada", timestamp(pool.into())).await;
        assert_eq!(version.unwrap(), pool);
    }
    fixture.store.add_provider_version("e2b", ProviderContent::default(), "ada", timestamp(0)).await.unwrap();
    let newest = fixture.store.providers().await.unwrap();
    let names: Vec<_> = newest.iter().map(|one| (one.provider.as_str(), one.version)).collect();
    assert_eq!(names, [("docker", 103), ("e2b", 1)]);
    assert_eq!(newest[0].content.settings, content(103).settings);
    assert_eq!(key.open("docker", newest[0].content.sealed.as_ref().unwrap()).unwrap(), b"hunter103");
    assert_eq!(newest[1].content, ProviderContent::default());
    let versions = fixture.store.provider_versions("docker").await.unwrap();
    assert_eq!((versions.len(), versions[0].version, versions[99].version), (100, 103, 4));
    assert!(fixture.store.provider_version("docker", 3).await.unwrap().is_none());
    assert_eq!(fixture.store.provider_version("docker", 4).await.unwrap().unwrap().changed, timestamp(4));
}
