//! The cache shared between machines: what it saves, and what it must not do.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_layers::store::{
    CacheAddress, LayerBounds, LayerKey, LayerOrigin, LayerRecipe, LayerScope, LayerStore, LayerStoreError,
    ObtainedLayer, SharedCache, SingleFlight, StoreWarning,
};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::common::{StoreFixture, fill, publish, recipe};

/// A folder shared between machines.
struct Cache(TempDir);

impl Cache {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn settings(&self) -> SharedCache {
        let address = CacheAddress::Folder(self.0.path().join("cache"));
        SharedCache { address, read_only: false, timeout: Duration::from_secs(60) }
    }

    /// Opens the store of a machine that uses the cache.
    fn store(&self, fixture: &StoreFixture) -> LayerStore {
        fixture.open().with_shared_cache(self.settings())
    }

    fn folder(&self, key: &LayerKey) -> PathBuf {
        self.0.path().join("cache").join(key.to_string())
    }

    fn archive(&self, key: &LayerKey) -> PathBuf {
        let entries = fs::read_dir(self.folder(key)).unwrap().map(|entry| entry.unwrap().path());
        entries.into_iter().find(|path| path.extension().is_some_and(|end| end == "tar")).unwrap()
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(self.0.path().join("cache")).map_or(true, |mut entries| entries.next().is_none())
    }
}

async fn obtain(store: &LayerStore, name: &str) -> ObtainedLayer {
    let flights = SingleFlight::<Result<_, LayerStoreError>>::default();
    let obtained = store.obtain(&flights, &recipe(name).key(), publish(store, name)).await.unwrap();
    store.wait_for_uploads().await;
    obtained
}

/// Writes an archive with a matching label.
fn put(folder: &Path, archive: &[u8]) {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).unwrap();
    let sha256: String = Sha256::digest(archive).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(folder.join(format!("{sha256}.tar")), archive).unwrap();
    label(folder, &format!(r#"{{"sha256":"{sha256}","bytes":{}}}"#, archive.len()));
}

fn label(folder: &Path, text: &str) {
    fs::write(folder.join("layer.json"), text).unwrap();
}

#[tokio::test]
async fn a_layer_built_on_one_machine_is_fetched_by_another() {
    let (cache, here, there) = (Cache::new(), StoreFixture::new(), StoreFixture::new());
    assert_eq!(obtain(&cache.store(&here), "a").await.origin, LayerOrigin::Built);
    let other = cache.store(&there);
    let got = obtain(&other, "a").await;
    assert_eq!(got.origin, LayerOrigin::Fetched);
    assert_eq!(fs::read_to_string(got.layer.files().join("pkg/__init__.py")).unwrap(), "name = \"a\"\n");
    assert_eq!(obtain(&other, "a").await.origin, LayerOrigin::Local);
    assert_eq!(other.verify(&recipe("a").key()).unwrap().tree, got.layer.manifest().tree);
    assert!(here.is_tidy() && there.is_tidy() && here.warnings().is_empty() && there.warnings().is_empty());
}

#[tokio::test]
async fn a_read_only_machine_uploads_nothing() {
    let (cache, fixture) = (Cache::new(), StoreFixture::new());
    let reading = SharedCache { read_only: true, ..cache.settings() };
    fs::create_dir(cache.0.path().join("cache")).unwrap();
    let store = fixture.open().with_shared_cache(reading);
    assert_eq!(obtain(&store, "a").await.origin, LayerOrigin::Built);
    assert!(cache.is_empty() && fixture.warnings().is_empty());
    obtain(&cache.store(&StoreFixture::new()), "b").await;
    assert_eq!(obtain(&store, "b").await.origin, LayerOrigin::Fetched);
}

/// The same packages for another tenant are a different layer, and moving files does not make them the same.
#[tokio::test]
async fn layers_of_other_tenants_are_never_fetched() {
    let of = |tenant: &str| LayerRecipe { scope: LayerScope::Tenant(tenant.to_owned()), ..recipe("a") };
    let (cache, here, there) = (Cache::new(), StoreFixture::new(), StoreFixture::new());
    let built = async |store: LayerStore, recipe: LayerRecipe| {
        let flights = SingleFlight::<Result<_, LayerStoreError>>::default();
        let build = async {
            let stage = store.stage()?;
            fill(&stage, "a");
            store.publish(stage, recipe.clone()).await
        };
        let obtained = store.obtain(&flights, &recipe.key(), build).await.unwrap();
        store.wait_for_uploads().await;
        obtained.origin
    };
    assert_eq!(built(cache.store(&here), of("one")).await, LayerOrigin::Built);
    assert_eq!(built(cache.store(&there), of("two")).await, LayerOrigin::Built);
    assert!(there.warnings().is_empty());
    // An attacker who moves the layer to the other tenant's key moves its manifest along.
    put(&cache.folder(&of("two").key()), &fs::read(cache.archive(&of("one").key())).unwrap());
    let third = StoreFixture::new();
    assert_eq!(built(cache.store(&third), of("two")).await, LayerOrigin::Built);
    assert!(
        matches!(&third.warnings()[..], [StoreWarning::SharedLayerInvalid { why, .. }] if why.contains("another layer"))
    );
}

#[tokio::test]
async fn an_invalid_shared_layer_is_reported_rebuilt_and_replaced() {
    let (cache, first) = (Cache::new(), StoreFixture::new());
    let store = cache.store(&first);
    obtain(&store, "a").await;
    obtain(&store, "b").await;
    let (key, sha) = (recipe("a").key(), "0".repeat(64));
    let folder = cache.folder(&key);
    let good = fs::read(cache.archive(&key)).unwrap();
    let other = fs::read(cache.archive(&recipe("b").key())).unwrap();
    let mut changed = good.clone();
    let at = changed.windows(6).position(|window| window == b"name =").unwrap();
    changed[at] ^= 1;
    let longer = [good.as_slice(), &[0; 512]].concat();
    let unlabelled = |bytes: &[u8]| {
        put(&folder, &good);
        fs::write(cache.archive(&key), bytes).unwrap();
    };
    let labelled = |text: &str| {
        put(&folder, &good);
        label(&folder, text);
    };
    let tampering: [(&str, &dyn Fn()); 11] = [
        ("match the hash in its label", &|| unlabelled(&changed)),
        ("match its manifest", &|| put(&folder, &changed)),
        ("another layer", &|| put(&folder, &other)),
        ("shorter than", &|| unlabelled(&good[..good.len() / 2])),
        ("longer than", &|| unlabelled(&longer)),
        ("it is empty", &|| put(&folder, &[])),
        ("size of a layer", &|| labelled(&format!(r#"{{"sha256":"{sha}","bytes":{}}}"#, 1_u64 << 50))),
        ("archive is missing", &|| labelled(&format!(r#"{{"sha256":"{sha}","bytes":1}}"#))),
        ("cannot be read", &|| labelled(r#"{"sha256":"../../../etc/passwd","bytes":1}"#)),
        ("cannot be read", &|| labelled("not json")),
        ("too long", &|| labelled(&" ".repeat(5_000))),
    ];
    for (reason, tamper) in tampering {
        tamper();
        let fixture = StoreFixture::new();
        assert_eq!(obtain(&cache.store(&fixture), "a").await.origin, LayerOrigin::Built, "{reason}");
        let warnings = fixture.warnings();
        assert!(
            matches!(&warnings[..], [StoreWarning::SharedLayerInvalid { why, .. }] if why.contains(reason)),
            "{warnings:?}"
        );
        assert!(fixture.is_tidy());
        assert_eq!(
            obtain(&cache.store(&StoreFixture::new()), "a").await.origin,
            LayerOrigin::Fetched,
            "{reason}"
        );
    }
}

#[tokio::test]
async fn a_layer_beyond_this_machines_limit_is_refused() {
    let (cache, fixture) = (Cache::new(), StoreFixture::new());
    obtain(&cache.store(&StoreFixture::new()), "a").await;
    let small = LayerBounds { layer_bytes: 10, ..LayerBounds::default() };
    let store = fixture.open_with(small).with_shared_cache(cache.settings());
    let flights = SingleFlight::<Result<_, LayerStoreError>>::default();
    let built = store.obtain(&flights, &recipe("a").key(), publish(&store, "a")).await;
    assert!(matches!(built, Err(LayerStoreError::TooLarge { .. })));
    assert!(
        matches!(&fixture.warnings()[..], [StoreWarning::SharedLayerInvalid { why, .. }] if why.contains("the layer is too large"))
    );
    assert!(fixture.is_tidy());
}

#[tokio::test]
async fn a_failing_shared_cache_is_reported_once() {
    let (cache, fixture) = (Cache::new(), StoreFixture::new());
    // A file in place of the folder.
    fs::write(cache.0.path().join("cache"), "").unwrap();
    let store = cache.store(&fixture);
    for name in ["a", "b"] {
        assert_eq!(obtain(&store, name).await.origin, LayerOrigin::Built);
    }
    assert!(matches!(&fixture.warnings()[..], [StoreWarning::SharedCacheFailed { .. }]));
    assert!(fixture.is_tidy());
}

#[tokio::test]
async fn a_world_writable_shared_folder_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let (cache, fixture) = (Cache::new(), StoreFixture::new());
    obtain(&cache.store(&StoreFixture::new()), "a").await;
    let everybody = fs::Permissions::from_mode(0o777);
    fs::set_permissions(cache.0.path().join("cache"), everybody).unwrap();
    assert_eq!(obtain(&cache.store(&fixture), "a").await.origin, LayerOrigin::Built);
    assert!(
        matches!(&fixture.warnings()[..], [StoreWarning::SharedCacheFailed { why }] if why.contains("world-writable"))
    );
}
