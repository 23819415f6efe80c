//! How layers are published and found.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use belljar_beneath::ContentDigest;
use belljar_layers::store::{LayerOrigin, LayerStore, LayerStoreError, ObtainedLayer, SingleFlight};

use crate::common::{StoreFixture, count, fill, publish, recipe};

#[tokio::test]
async fn a_published_layer_is_found_and_read_only() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let key = recipe("a").key();
    assert!(store.find(&key).await.unwrap().is_none());
    let held = publish(&store, "a").await.unwrap();
    assert_eq!((held.key(), held.manifest().key), (key, key));
    assert_eq!((held.manifest().entries, held.manifest().bytes), (7, 21));

    let found = fixture.open().find(&key).await.unwrap().unwrap();
    assert_eq!(found.manifest(), held.manifest());
    let mode =
        |path: &str| fs::symlink_metadata(found.files().join(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(""), 0o555);
    assert_eq!((mode("pkg"), mode("pkg/sub")), (0o555, 0o555));
    assert_eq!((mode("pkg/__init__.py"), mode("bin/tool")), (0o444, 0o555));
    assert_eq!(fs::read_to_string(found.files().join("pkg/link")).unwrap(), "#!/bin/sh\n");
    assert!(fixture.is_tidy() && fixture.warnings().is_empty());
}

#[tokio::test]
async fn a_stage_that_is_not_published_leaves_nothing() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let stage = store.stage().unwrap();
    fill(&stage, "a");
    assert_eq!(fs::metadata(stage.files()).unwrap().permissions().mode() & 0o7777, 0o700);
    drop(stage);
    assert!(fixture.is_tidy());
}

#[tokio::test]
async fn concurrent_publications_yield_one_layer() {
    let fixture = StoreFixture::new();
    let (first, second) = (fixture.open(), fixture.open());
    let (one, two) = tokio::join!(publish(&first, "a"), publish(&second, "a"));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.files(), two.files());
    assert_eq!(count(&fixture.path().join("layers")), 1);
    assert!(fixture.is_tidy());
}

#[tokio::test]
async fn publishing_replaces_a_damaged_layer() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let held = publish(&store, "a").await.unwrap();
    fs::write(fixture.layer(&held.key()).join("extra"), "x").unwrap();
    let again = publish(&fixture.open(), "a").await.unwrap();
    assert!(!fixture.layer(&again.key()).join("extra").exists());
    assert_eq!(fixture.warnings().len(), 1);
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Failed {
    Shelf(LayerStoreError),
    Build,
}

impl From<LayerStoreError> for Failed {
    fn from(error: LayerStoreError) -> Self {
        Self::Shelf(error)
    }
}

/// A hundred callers that request the same layer.
async fn hundred(store: &LayerStore, fail: bool) -> (usize, Vec<Result<ObtainedLayer, Failed>>) {
    let (flights, builds) = (Arc::new(SingleFlight::default()), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let (store, flights, builds) = (store.clone(), Arc::clone(&flights), Arc::clone(&builds));
            tokio::spawn(async move {
                let build = async {
                    builds.fetch_add(1, Ordering::SeqCst);
                    // Long enough for all callers to arrive; a late one would find the layer, or build it
                    // again.
                    tokio::time::sleep(Duration::from_millis(1_500)).await;
                    if fail { Err(Failed::Build) } else { publish(&store, "a").await.map_err(Failed::from) }
                };
                store.obtain(&flights, &recipe("a").key(), build).await
            })
        })
        .collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    (builds.load(Ordering::SeqCst), results)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_first_requests_build_once() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let (builds, results) = hundred(&store, false).await;
    assert_eq!(builds, 1);
    assert!(results.iter().all(|result| result.as_ref().is_ok_and(|got| got.layer.files().exists())));
    let (builds, results) = hundred(&store, false).await;
    assert_eq!(builds, 0);
    assert!(results.iter().all(|result| result.as_ref().is_ok_and(|got| got.origin == LayerOrigin::Local)));
    assert!(fixture.is_tidy());
}

#[tokio::test]
async fn a_hundred_first_requests_get_the_same_error() {
    let fixture = StoreFixture::new();
    let (builds, results) = hundred(&fixture.open(), true).await;
    assert_eq!(builds, 1);
    assert!(results.iter().all(|result| matches!(result, Err(Failed::Build))));
    assert!(fixture.is_tidy());
}

#[tokio::test]
async fn resolutions_expire_but_are_kept() {
    let fixture = StoreFixture::new();
    let (store, question) = (fixture.open(), ContentDigest::from_parts("question", ["numpy"]));
    assert_eq!(store.resolution::<Vec<String>>(&question, Duration::MAX).await, None);
    store.store_resolution(&question, &vec!["numpy==2.0".to_owned()]).await.unwrap();
    let fresh = store.resolution::<Vec<String>>(&question, Duration::from_secs(3_600)).await.unwrap();
    assert_eq!((fresh.fresh, fresh.value), (true, vec!["numpy==2.0".to_owned()]));
    let old = fixture.open().resolution::<Vec<String>>(&question, Duration::ZERO).await.unwrap();
    assert!(!old.fresh);
    // A file with another digest's resolution is ignored, and so is an invalid file.
    let other = ContentDigest::from_parts("question", ["pandas"]);
    let at = |digest: &ContentDigest| fixture.path().join("resolutions").join(digest.to_string());
    fs::copy(at(&question), at(&other)).unwrap();
    assert_eq!(store.resolution::<Vec<String>>(&other, Duration::MAX).await, None);
    fs::write(at(&question), "{").unwrap();
    assert_eq!(store.resolution::<Vec<String>>(&question, Duration::MAX).await, None);
    assert!(fixture.is_tidy());
}

/// Listing a folder updates its atime. Finding a layer does not list any folder.
#[tokio::test]
async fn a_layer_among_a_thousand_is_found_without_a_list() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let key = publish(&store, "a").await.unwrap().key();
    let folders = ["layers", "locks", "staging", "turns"].map(|name| fixture.path().join(name));
    for number in 0..1_000 {
        fs::create_dir(folders[0].join(format!("{number:064x}"))).unwrap();
    }
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for folder in &folders {
        fs::File::open(folder).unwrap().set_times(fs::FileTimes::new().set_accessed(long_ago)).unwrap();
    }
    let listed =
        || folders.iter().filter(|folder| fs::metadata(folder).unwrap().atime() != 1_000_000_000).count();
    assert!(store.find(&key).await.unwrap().is_some());
    assert!(store.find(&recipe("missing").key()).await.unwrap().is_none());
    assert_eq!(listed(), 0);
    store.list().unwrap();
    if listed() == 0 {
        println!("skipped: this file system does not update atime");
    }
}

#[tokio::test]
async fn a_folder_writable_by_others_is_refused() {
    let fixture = StoreFixture::new();
    drop(fixture.open());
    fs::set_permissions(fixture.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = LayerStore::open(&fixture.path(), Default::default(), Arc::new(|_| {})).unwrap_err();
    assert!(matches!(error, LayerStoreError::WritableByOthers { .. }), "{error}");
}

/// Uses a small tmpfs, if the test may mount one.
#[tokio::test]
async fn a_full_disk_is_an_error_without_damage() {
    let fixture = StoreFixture::new();
    fs::create_dir(fixture.path()).unwrap();
    let Some(_mounted) = Mounted::tmpfs(&fixture.path(), "size=1m,mode=700") else {
        println!("skipped: needs root to mount a small file system");
        return;
    };
    let store = fixture.open();
    let held = publish(&store, "a").await.unwrap();
    let stage = store.stage().unwrap();
    fill(&stage, "b");
    let mut file = fs::File::create(stage.files().join("fill")).unwrap();
    while file.write_all(&[1; 4_096]).is_ok() {}
    drop(file);
    let error = store.publish(stage, recipe("b")).await.unwrap_err();
    assert!(matches!(error, LayerStoreError::NoSpace { .. }), "{error}");
    assert!(error.to_string().contains("belljar deps prune"), "{error}");
    assert!(fixture.is_tidy());
    store.verify(&held.key()).unwrap();
    publish(&store, "b").await.unwrap();
}

#[tokio::test]
async fn a_read_only_folder_is_reported() {
    let fixture = StoreFixture::new();
    fs::create_dir(fixture.path()).unwrap();
    let Some(mounted) = Mounted::tmpfs(&fixture.path(), "size=1m,mode=700") else {
        println!("skipped: needs root to mount a file system read-only");
        return;
    };
    let store = fixture.open();
    publish(&store, "a").await.unwrap();
    mounted.read_only();
    let error = publish(&store, "b").await.unwrap_err();
    assert!(matches!(error, LayerStoreError::ReadOnly { .. }), "{error}");
    assert!(error.to_string().contains("dependencies.folder"), "{error}");
}

struct Mounted(std::path::PathBuf);

impl Mounted {
    fn tmpfs(at: &std::path::Path, options: &str) -> Option<Self> {
        Self::mount(&["-t", "tmpfs", "-o", options, "tmpfs"], at).then(|| Self(at.to_owned()))
    }

    fn read_only(&self) {
        assert!(Self::mount(&["-o", "remount,ro"], &self.0));
    }

    fn mount(arguments: &[&str], at: &std::path::Path) -> bool {
        let ran = std::process::Command::new("mount").args(arguments).arg(at).output();
        ran.is_ok_and(|ran| ran.status.success())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
