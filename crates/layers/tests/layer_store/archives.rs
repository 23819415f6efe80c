//! Export and import: a layer is imported exactly as exported, and nothing else is accepted.

use std::fs;
use std::io::Cursor;
use std::os::unix::fs::MetadataExt;

use belljar_layers::store::{LayerBounds, LayerStoreError, Manifest, Prune};
use tar::{Builder, EntryType, Header};

use crate::common::{StoreFixture, count, publish};

/// Returns an exported layer.
async fn exported() -> (Vec<u8>, Manifest, i64) {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let held = publish(&store, "a").await.unwrap();
    let mut bytes = Vec::new();
    let manifest = store.export(&held.key(), &mut bytes).unwrap();
    let time = fs::metadata(held.files().join("pkg/__init__.py")).unwrap().mtime();
    (bytes, manifest, time)
}

fn refused(archive: Vec<u8>) -> LayerStoreError {
    let fixture = StoreFixture::new();
    let store = fixture.open_with(LayerBounds { layer_bytes: 1 << 20, ..LayerBounds::default() });
    let error = store.import(Cursor::new(archive)).unwrap_err();
    assert_eq!(count(&fixture.path().join("layers")), 0);
    assert!(fixture.is_tidy());
    error
}

#[tokio::test]
async fn an_exported_layer_is_imported_unchanged() {
    let (archive, manifest, time) = exported().await;
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let held = store.import(Cursor::new(&archive)).unwrap();
    assert_eq!(held.manifest().tree, manifest.tree);
    assert_eq!(held.manifest().recipe, manifest.recipe);
    let found = fixture.open().find(&manifest.key).await.unwrap().unwrap();
    assert_eq!(fs::read_link(found.files().join("pkg/link")).unwrap().to_str(), Some("../bin/tool"));
    assert_eq!(fs::metadata(found.files().join("pkg/__init__.py")).unwrap().mtime(), time);
    // Importing it again is not an error.
    store.import(Cursor::new(&archive)).unwrap();
    assert!(fixture.is_tidy());
    assert_eq!(store.export(&manifest.key, Vec::new()).unwrap().tree, manifest.tree);
}

/// Flips a bit anywhere: the import is refused, or the bit has no meaning (a time, padding) and the layer is
/// identical.
#[tokio::test]
async fn no_changed_byte_changes_a_layer() {
    let (archive, manifest, _) = exported().await;
    let fixture = StoreFixture::new();
    let store = fixture.open();
    for index in (0..archive.len()).step_by(7) {
        let mut changed = archive.clone();
        changed[index] ^= 0x01;
        if let Ok(held) = store.import(Cursor::new(changed)) {
            let got = held.manifest();
            assert_eq!(
                (got.key, got.tree, &got.recipe),
                (manifest.key, manifest.tree, &manifest.recipe),
                "{index}"
            );
        }
        // An existing layer would be returned without reading the rest of the archive.
        store.prune(Prune { to_layers: Some(0), ..Prune::default() }).unwrap();
    }
    for len in (0..archive.len() - 1_024).step_by(200) {
        refused(archive[..len].to_vec());
    }
}

fn header(kind: EntryType, size: u64, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(0);
    header
}

/// Writes a name verbatim that the tar library would refuse.
fn raw(archive: &mut Builder<Vec<u8>>, name: &str, mut header: Header, data: &[u8]) {
    let field = &mut header.as_old_mut().name;
    field.fill(0);
    field[..name.len()].copy_from_slice(name.as_bytes());
    header.set_cksum();
    archive.append(&header, data).unwrap();
}

type Add = fn(&mut Builder<Vec<u8>>);

const HOSTILE: [(&str, Add); 14] = [
    ("a file above", |tar| raw(tar, "files/../../x", header(EntryType::Regular, 1, 0o644), b"x")),
    ("an absolute one", |tar| raw(tar, "/tmp/x", header(EntryType::Regular, 1, 0o644), b"x")),
    ("beside the files", |tar| raw(tar, "x", header(EntryType::Regular, 1, 0o644), b"x")),
    ("the top itself", |tar| raw(tar, "files", header(EntryType::Directory, 0, 0o755), b"")),
    ("a second manifest", |tar| raw(tar, "manifest.json", header(EntryType::Regular, 1, 0o644), b"x")),
    ("through a link", |tar| {
        let mut link = header(EntryType::Symlink, 0, 0o777);
        link.set_link_name("/tmp").unwrap();
        raw(tar, "files/out", link, b"");
        raw(tar, "files/out/belljar-test-x", header(EntryType::Regular, 1, 0o644), b"x");
    }),
    ("over a link", |tar| {
        let mut link = header(EntryType::Symlink, 0, 0o777);
        link.set_link_name("/tmp/belljar-test-x").unwrap();
        raw(tar, "files/out", link, b"");
        raw(tar, "files/out", header(EntryType::Regular, 1, 0o644), b"x");
    }),
    ("a hard link", |tar| {
        let mut link = header(EntryType::Link, 0, 0o644);
        link.set_link_name("/etc/passwd").unwrap();
        raw(tar, "files/x", link, b"");
    }),
    ("a device", |tar| raw(tar, "files/x", header(EntryType::Char, 0, 0o644), b"")),
    ("a pipe", |tar| raw(tar, "files/x", header(EntryType::Fifo, 0, 0o644), b"")),
    ("setuid", |tar| raw(tar, "files/x", header(EntryType::Regular, 1, 0o4755), b"x")),
    ("twice", |tar| {
        raw(tar, "files/x", header(EntryType::Regular, 1, 0o644), b"x");
        raw(tar, "files/x", header(EntryType::Regular, 1, 0o644), b"y");
    }),
    ("a name of a megabyte", |tar| {
        let name = vec![b'a'; 1 << 20];
        raw(tar, "././@LongLink", header(EntryType::GNULongName, name.len() as u64, 0o644), &name);
        raw(tar, "files/x", header(EntryType::Regular, 0, 0o644), b"");
    }),
    ("too much", |tar| {
        let data = vec![0; 2 << 20];
        raw(tar, "files/x", header(EntryType::Regular, data.len() as u64, 0o644), &data);
    }),
];

#[tokio::test]
async fn hostile_archives_are_refused() {
    // May be left over from a version that followed links.
    let _ = fs::remove_file("/tmp/belljar-test-x");
    let (_, manifest, _) = exported().await;
    let text = serde_json::to_vec(&manifest).unwrap();
    for (what, add) in HOSTILE {
        let mut archive = Builder::new(Vec::new());
        raw(&mut archive, "manifest.json", header(EntryType::Regular, text.len() as u64, 0o444), &text);
        add(&mut archive);
        let error = refused(archive.into_inner().unwrap());
        assert!(
            matches!(&error, LayerStoreError::Archive(why) if !why.contains("match its manifest")),
            "{what}: {error}"
        );
        assert!(!std::path::Path::new("/tmp/belljar-test-x").exists(), "{what}");
    }
    // The files are missing.
    let mut archive = Builder::new(Vec::new());
    raw(&mut archive, "manifest.json", header(EntryType::Regular, text.len() as u64, 0o444), &text);
    let error = refused(archive.into_inner().unwrap());
    assert!(error.to_string().contains("match its manifest"), "{error}");
    refused(Vec::new());
    refused(b"not a tar at all".repeat(100));
}
