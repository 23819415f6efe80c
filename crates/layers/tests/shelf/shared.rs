//! The cache shared between machines: what it saves, and what it must not do.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_layers::shelf::{
    Address, Bounds, Flights, Key, Notice, Obtained, Origin, Recipe, Scope, SharedCache, Shelf, ShelfError,
};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::common::{Place, fill, publish, recipe};

/// A folder shared between machines.
struct Cache(TempDir);

impl Cache {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn settings(&self) -> SharedCache {
        let address = Address::Folder(self.0.path().join("cache"));
        SharedCache { address, read_only: false, wait: Duration::from_secs(60) }
    }

    /// Opens the store of a machine that uses the cache.
    fn shelf(&self, place: &Place) -> Shelf {
        place.open().sharing(self.settings())
    }

    fn folder(&self, key: &Key) -> PathBuf {
        self.0.path().join("cache").join(key.to_string())
    }

    fn archive(&self, key: &Key) -> PathBuf {
        let entries = fs::read_dir(self.folder(key)).unwrap().map(|entry| entry.unwrap().path());
        entries.into_iter().find(|path| path.extension().is_some_and(|end| end == "tar")).unwrap()
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(self.0.path().join("cache")).map_or(true, |mut entries| entries.next().is_none())
    }
}

async fn obtain(shelf: &Shelf, name: &str) -> Obtained {
    let flights = Flights::<Result<_, ShelfError>>::default();
    let obtained = shelf.obtain(&flights, &recipe(name).key(), publish(shelf, name)).await.unwrap();
    shelf.settle().await;
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
async fn what_one_machine_built_another_one_gets() {
    let (cache, here, there) = (Cache::new(), Place::new(), Place::new());
    assert_eq!(obtain(&cache.shelf(&here), "a").await.origin, Origin::Built);
    let other = cache.shelf(&there);
    let got = obtain(&other, "a").await;
    assert_eq!(got.origin, Origin::Fetched);
    assert_eq!(fs::read_to_string(got.held.files().join("pkg/__init__.py")).unwrap(), "name = \"a\"\n");
    assert_eq!(obtain(&other, "a").await.origin, Origin::Shelf);
    assert_eq!(other.verify(&recipe("a").key()).unwrap().tree, got.held.manifest().tree);
    assert!(here.is_tidy() && there.is_tidy() && here.told().is_empty() && there.told().is_empty());
}

#[tokio::test]
async fn a_machine_that_only_reads_gives_nothing() {
    let (cache, place) = (Cache::new(), Place::new());
    let reading = SharedCache { read_only: true, ..cache.settings() };
    fs::create_dir(cache.0.path().join("cache")).unwrap();
    let shelf = place.open().sharing(reading);
    assert_eq!(obtain(&shelf, "a").await.origin, Origin::Built);
    assert!(cache.is_empty() && place.told().is_empty());
    obtain(&cache.shelf(&Place::new()), "b").await;
    assert_eq!(obtain(&shelf, "b").await.origin, Origin::Fetched);
}

/// The same packages for another tenant are a different layer, and moving files does not make them the same.
#[tokio::test]
async fn another_tenants_layer_is_not_asked_for_and_not_taken() {
    let of = |tenant: &str| Recipe { scope: Scope::Tenant(tenant.to_owned()), ..recipe("a") };
    let (cache, here, there) = (Cache::new(), Place::new(), Place::new());
    let built = async |shelf: Shelf, recipe: Recipe| {
        let flights = Flights::<Result<_, ShelfError>>::default();
        let build = async {
            let stage = shelf.stage()?;
            fill(&stage, "a");
            shelf.publish(stage, recipe.clone()).await
        };
        let obtained = shelf.obtain(&flights, &recipe.key(), build).await.unwrap();
        shelf.settle().await;
        obtained.origin
    };
    assert_eq!(built(cache.shelf(&here), of("one")).await, Origin::Built);
    assert_eq!(built(cache.shelf(&there), of("two")).await, Origin::Built);
    assert!(there.told().is_empty());
    // An attacker who moves the layer to the other tenant's key moves its manifest along.
    put(&cache.folder(&of("two").key()), &fs::read(cache.archive(&of("one").key())).unwrap());
    let third = Place::new();
    assert_eq!(built(cache.shelf(&third), of("two")).await, Origin::Built);
    assert!(matches!(&third.told()[..], [Notice::Refused { why, .. }] if why.contains("another layer")));
}

#[tokio::test]
async fn what_is_not_the_layer_is_refused_told_built_and_mended() {
    let (cache, first) = (Cache::new(), Place::new());
    let shelf = cache.shelf(&first);
    obtain(&shelf, "a").await;
    obtain(&shelf, "b").await;
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
        let place = Place::new();
        assert_eq!(obtain(&cache.shelf(&place), "a").await.origin, Origin::Built, "{reason}");
        let told = place.told();
        assert!(matches!(&told[..], [Notice::Refused { why, .. }] if why.contains(reason)), "{told:?}");
        assert!(place.is_tidy());
        assert_eq!(obtain(&cache.shelf(&Place::new()), "a").await.origin, Origin::Fetched, "{reason}");
    }
}

#[tokio::test]
async fn what_is_too_large_for_this_machine_is_refused() {
    let (cache, place) = (Cache::new(), Place::new());
    obtain(&cache.shelf(&Place::new()), "a").await;
    let small = Bounds { layer_bytes: 10, ..Bounds::default() };
    let shelf = place.open_with(small).sharing(cache.settings());
    let flights = Flights::<Result<_, ShelfError>>::default();
    let built = shelf.obtain(&flights, &recipe("a").key(), publish(&shelf, "a")).await;
    assert!(matches!(built, Err(ShelfError::TooLarge { .. })));
    assert!(matches!(&place.told()[..], [Notice::Refused { why, .. }] if why.contains("too many bytes")));
    assert!(place.is_tidy());
}

#[tokio::test]
async fn a_cache_that_fails_is_told_once_and_done_without() {
    let (cache, place) = (Cache::new(), Place::new());
    // A file in place of the folder.
    fs::write(cache.0.path().join("cache"), "").unwrap();
    let shelf = cache.shelf(&place);
    for name in ["a", "b"] {
        assert_eq!(obtain(&shelf, name).await.origin, Origin::Built);
    }
    assert!(matches!(&place.told()[..], [Notice::Cache { .. }]));
    assert!(place.is_tidy());
}

#[tokio::test]
async fn a_folder_that_everybody_may_write_is_not_believed() {
    use std::os::unix::fs::PermissionsExt;
    let (cache, place) = (Cache::new(), Place::new());
    obtain(&cache.shelf(&Place::new()), "a").await;
    let everybody = fs::Permissions::from_mode(0o777);
    fs::set_permissions(cache.0.path().join("cache"), everybody).unwrap();
    assert_eq!(obtain(&cache.shelf(&place), "a").await.origin, Origin::Built);
    assert!(matches!(&place.told()[..], [Notice::Cache { why }] if why.contains("world-writable")));
}
