//! Which layers are kept, which are removed, and in what order.

use std::fs;
use std::time::{Duration, SystemTime};

use belljar_layers::store::{LayerBounds, LayerKey, LayerRecipe, LayerScope, Prune, PruneResult};

use crate::common::{StoreFixture, count, fill, publish, recipe};

/// Sets a layer's last use to `hours` ago.
fn used(fixture: &StoreFixture, name: &str, hours: u64) {
    let lock = fixture.path().join("locks").join(recipe(name).key().to_string());
    let time = SystemTime::now() - Duration::from_secs(hours * 3_600);
    fs::File::options().write(true).open(lock).unwrap().set_modified(time).unwrap();
}

fn keys(names: &[&str]) -> Vec<LayerKey> {
    names.iter().map(|name| recipe(name).key()).collect()
}

#[tokio::test]
async fn the_least_recently_used_layer_is_removed_first() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    for (name, hours) in [("a", 2), ("b", 9), ("c", 5), ("d", 7)] {
        drop(publish(&store, name).await.unwrap());
        used(&fixture, name, hours);
    }
    // A use counts: it is now the most recent.
    drop(store.find(&recipe("d").key()).await.unwrap().unwrap());
    let listed: Vec<LayerKey> = store.list().unwrap().iter().map(|layer| layer.manifest.key).collect();
    assert_eq!(listed, keys(&["b", "c", "a", "d"]));

    let pruned = store.prune(Prune { to_layers: Some(3), ..Prune::default() }).unwrap();
    assert_eq!(pruned, PruneResult { layers: 1, bytes: 21 });
    let pruned = store.prune(Prune { to_bytes: Some(42), ..Prune::default() }).unwrap();
    assert_eq!(pruned, PruneResult { layers: 1, bytes: 21 });
    let pruned = store.prune(Prune { unused_for: Some(Duration::from_secs(3_600)), ..Prune::default() });
    assert_eq!(pruned.unwrap(), PruneResult { layers: 1, bytes: 21 });
    let listed: Vec<LayerKey> = store.list().unwrap().iter().map(|layer| layer.manifest.key).collect();
    assert_eq!(listed, keys(&["d"]));
    assert!(store.find(&recipe("a").key()).await.unwrap().is_none());
    assert!(fixture.is_tidy());
    assert_eq!(count(&fixture.path().join("locks")), 2);
}

#[tokio::test]
async fn publishing_evicts_unused_layers_only() {
    let fixture = StoreFixture::new();
    let store = fixture.open_with(LayerBounds { layers: 2, ..LayerBounds::default() });
    let held = publish(&store, "a").await.unwrap();
    used(&fixture, "a", 9);
    for name in ["b", "c", "d"] {
        drop(publish(&store, name).await.unwrap());
        used(&fixture, name, 1);
    }
    let mut listed: Vec<LayerKey> = store.list().unwrap().iter().map(|layer| layer.manifest.key).collect();
    listed.sort();
    let mut expected = keys(&["a", "d"]);
    expected.sort();
    assert_eq!(listed, expected);
    assert!(held.files().exists());
}

#[tokio::test]
async fn finding_a_layer_rarely_updates_its_last_use() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let key = publish(&store, "a").await.unwrap().key();
    let lock = fixture.path().join("locks").join(key.to_string());
    let time = SystemTime::now() - Duration::from_secs(30);
    fs::File::options().write(true).open(&lock).unwrap().set_modified(time).unwrap();
    let noted = || fs::metadata(&lock).unwrap().modified().unwrap();
    let before = noted();
    for _ in 0..10 {
        assert!(store.find(&key).await.unwrap().is_some());
    }
    assert_eq!(noted(), before);
}

#[tokio::test]
async fn the_layers_of_one_tenant_are_removed_unless_in_use() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let of = |name: &str, tenant: &str| LayerRecipe {
        scope: LayerScope::Tenant(tenant.to_owned()),
        ..recipe(name)
    };
    let publish = async |recipe: LayerRecipe| {
        let stage = store.stage().unwrap();
        fill(&stage, "a");
        store.publish(stage, recipe).await.unwrap()
    };
    drop((publish(of("a", "ada")).await, publish(of("a", "bob")).await));
    let in_use = publish(of("b", "ada")).await;
    store.remove_scope(LayerScope::Tenant("ada".to_owned())).await.unwrap();
    let mut left = store.keys().unwrap();
    left.sort();
    let mut expected = [of("a", "bob").key(), of("b", "ada").key()];
    expected.sort();
    assert_eq!(left, expected);
    drop(in_use);
    store.remove_scope(LayerScope::Tenant("ada".to_owned())).await.unwrap();
    assert_eq!(store.keys().unwrap(), [of("a", "bob").key()]);
    assert!(fixture.is_tidy());
}
