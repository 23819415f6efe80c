//! Any change to a layer is detected: at its first use after a start, and by `verify`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use belljar_layers::store::{LayerStoreError, StoreWarning};

use crate::common::{StoreFixture, count, publish, recipe};

/// Changes a file despite its mode, and restores the modes.
fn anyway(path: &Path, mode: u32, change: impl FnOnce(&Path)) {
    let folder = path.parent().unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    if path.is_file() {
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    }
    change(path);
    if path.is_file() && !path.is_symlink() {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o555)).unwrap();
}

type Change = fn(&Path);

const CHANGES: [(&str, Change); 14] = [
    ("one byte", |layer| {
        anyway(&layer.join("files/pkg/__init__.py"), 0o444, |path| {
            let mut bytes = fs::read(path).unwrap();
            bytes[0] ^= 1;
            fs::write(path, bytes).unwrap();
        });
    }),
    ("a byte more", |layer| {
        anyway(&layer.join("files/pkg/sub/empty"), 0o444, |path| fs::write(path, "x").unwrap());
    }),
    ("a file may be written", |layer| {
        fs::set_permissions(layer.join("files/bin/tool"), fs::Permissions::from_mode(0o755)).unwrap();
    }),
    ("a file may be executed", |layer| {
        let path = layer.join("files/pkg/__init__.py");
        fs::set_permissions(path, fs::Permissions::from_mode(0o555)).unwrap();
    }),
    ("setuid", |layer| {
        fs::set_permissions(layer.join("files/bin/tool"), fs::Permissions::from_mode(0o4555)).unwrap();
    }),
    ("the top may be written", |layer| {
        fs::set_permissions(layer.join("files"), fs::Permissions::from_mode(0o755)).unwrap();
    }),
    ("another target", |layer| {
        anyway(&layer.join("files/pkg/link"), 0, |path| {
            fs::remove_file(path).unwrap();
            symlink("../bin/../bin/tool", path).unwrap();
        });
    }),
    ("a target that stays inside", |layer| {
        anyway(&layer.join("files/pkg/link"), 0, |path| {
            fs::remove_file(path).unwrap();
            symlink("__init__.py", path).unwrap();
        });
    }),
    ("a file more", |layer| {
        anyway(&layer.join("files/pkg/more.py"), 0o444, |path| fs::write(path, "").unwrap());
    }),
    ("a file less", |layer| {
        anyway(&layer.join("files/pkg/sub/empty"), 0o444, |path| fs::remove_file(path).unwrap());
    }),
    ("a second name", |layer| {
        let other = layer.join("../../elsewhere");
        fs::hard_link(layer.join("files/bin/tool"), other).unwrap();
    }),
    ("something beside the files", |layer| fs::write(layer.join("note"), "").unwrap()),
    ("no manifest", |layer| fs::remove_file(layer.join("manifest.json")).unwrap()),
    ("another layer's manifest", |layer| {
        let path = layer.join("manifest.json");
        let text = fs::read_to_string(&path).unwrap().replace("1.0", "1.1");
        fs::remove_file(&path).unwrap();
        fs::write(path, text).unwrap();
    }),
];

#[tokio::test]
async fn a_damaged_layer_is_not_used_after_a_start() {
    for (what, change) in CHANGES {
        let fixture = StoreFixture::new();
        let key = publish(&fixture.open(), "a").await.unwrap().key();
        change(&fixture.layer(&key));
        let store = fixture.open();
        assert!(store.find(&key).await.unwrap().is_none(), "{what}");
        assert!(
            matches!(&fixture.warnings()[..], [StoreWarning::Damaged { key: warnings, .. }] if *warnings == key),
            "{what}"
        );
        assert_eq!(count(&fixture.path().join("broken")), 1, "{what}");
        // Rebuilt, it is valid again.
        publish(&store, "a").await.unwrap();
        assert!(fixture.open().find(&key).await.unwrap().is_some(), "{what}");
        assert!(fixture.warnings().is_empty(), "{what}");
    }
}

#[tokio::test]
async fn verify_finds_damage_of_a_layer_that_is_in_use() {
    for (what, change) in CHANGES {
        let fixture = StoreFixture::new();
        let store = fixture.open();
        let held = publish(&store, "a").await.unwrap();
        store.verify(&held.key()).unwrap();
        change(&fixture.layer(&held.key()));
        let error = store.verify(&held.key()).unwrap_err();
        assert!(matches!(error, LayerStoreError::Damaged { .. }), "{what}: {error}");
        assert!(store.find(&held.key()).await.unwrap().is_none(), "{what}");
        assert_eq!(store.verify(&held.key()), Err(LayerStoreError::NotFound(held.key())), "{what}");
        assert_eq!(fixture.warnings().len(), 1, "{what}");
    }
}

/// A process that has verified and uses a layer notices that it was replaced.
#[tokio::test]
async fn a_layer_that_was_replaced_is_verified_again() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let held = publish(&store, "a").await.unwrap();
    let other = fixture.open();
    fs::write(fixture.layer(&held.key()).join("note"), "").unwrap();
    other.verify(&held.key()).unwrap_err();
    publish(&other, "a").await.unwrap();
    CHANGES[0].1(&fixture.layer(&held.key()));
    CHANGES[5].1(&fixture.layer(&held.key()));
    assert!(store.find(&recipe("a").key()).await.unwrap().is_none());
}
