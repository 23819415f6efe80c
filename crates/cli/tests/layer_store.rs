//! `belljar deps list|show|prune|verify|export|import` over the real binary, on a layer store filled by the
//! library.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use belljar_layers::store::{ExactPackage, LayerBounds, LayerRecipe, LayerScope, LayerStore};
use serde_json::Value;

/// Puts a layer with one package into a layer store.
fn publish(folder: &Path, name: &str) -> String {
    let store = LayerStore::open(folder, LayerBounds::default(), Arc::new(|_| {})).unwrap();
    let stage = store.stage().unwrap();
    fs::write(stage.files().join("module.py"), format!("name = {name:?}\n")).unwrap();
    let recipe = LayerRecipe {
        registry: "https://pypi.org/simple".to_owned(),
        packages: vec![ExactPackage { name: name.to_owned(), version: "1.0".to_owned(), hashes: Vec::new() }],
        interpreter: "cpython-3.12".to_owned(),
        platform: "x86_64-linux-gnu".to_owned(),
        options: Vec::new(),
        scope: LayerScope::Shared,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(store.publish(stage, recipe)).unwrap().key().to_string()
}

fn deps(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command
        .arg("deps")
        .args(words)
        .env("DEPENDENCY_CACHE_DIR", folder)
        .env("XDG_CONFIG_HOME", "/nonexistent");
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn json(folder: &Path, words: &[&str]) -> Value {
    let output = deps(folder, words);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)))
}

#[test]
fn layers_are_listed_shown_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("layers");
    assert_eq!(said(&deps(&folder, &["list"])), "No layers.\n");
    let (one, two) = (publish(&folder, "numpy"), publish(&folder, "evil\x1b[2J"));
    let list = said(&deps(&folder, &["list"]));
    assert!(list.contains(&one[..12]) && list.contains("numpy 1.0") && list.contains("just now"), "{list}");
    assert!(list.contains("evil\\u{1b}[2J") && list.contains("2 layers"), "{list}");
    assert_eq!(json(&folder, &["list", "--json"])["layers"].as_array().unwrap().len(), 2);
    let show = said(&deps(&folder, &["show", &one[..10]]));
    assert!(show.contains(&one) && show.contains("https://pypi.org/simple"), "{show}");
    assert_eq!(json(&folder, &["show", &two, "--json"])["key"], two.as_str());

    let wrong = deps(&folder, &["show", "nope"]);
    assert_eq!(wrong.status.code(), Some(125));
    assert!(said(&wrong).contains("belljar deps list"), "{}", said(&wrong));
    assert_eq!(json(&folder, &["prune", "--json"])["layers"], 0);
    assert_eq!(json(&folder, &["prune", "--unused-for", "1h", "--json"])["layers"], 0);
    assert_eq!(said(&deps(&folder, &["prune", "--all"])), "Removed 2 layers, 38 bytes.\n");
    assert!(said(&deps(&folder, &["prune", "--to", "-1"])).contains("--to: must not be negative"));
}

#[test]
fn layers_are_exported_imported_and_verified() {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (folder.path().join("here"), folder.path().join("there"));
    let key = publish(&here, "numpy");
    let archive = folder.path().join("numpy.tar");
    let archive = archive.to_str().unwrap();
    assert!(deps(&here, &["export", &key[..8], archive]).status.success());
    assert!(said(&deps(&here, &["export", &key, archive])).contains("already exists"));
    assert_eq!(deps(&here, &["export", &key, "-"]).stdout, fs::read(archive).unwrap());
    let imported = said(&deps(&there, &["import", archive]));
    assert_eq!(imported, format!("Imported layer {key}. It contains numpy 1.0.\n"));
    assert_eq!(said(&deps(&there, &["verify"])), "1 layer intact\n");

    let module = there.join("layers").join(&key).join("files/module.py");
    fs::set_permissions(&module, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&module, "name = 'nympy'\n").unwrap();
    fs::set_permissions(&module, fs::Permissions::from_mode(0o444)).unwrap();
    let verified = deps(&there, &["verify"]);
    assert_eq!(verified.status.code(), Some(1));
    assert!(said(&verified).contains("1 damaged and moved away"), "{}", said(&verified));
    assert!(said(&verified).contains(&format!("layer {key} was damaged")), "{}", said(&verified));
    assert_eq!(said(&deps(&there, &["list"])), "No layers.\n");

    let mut bytes = fs::read(archive).unwrap();
    let at = bytes.windows(7).position(|window| window == b"name = ").unwrap();
    bytes[at] ^= 1;
    fs::write(archive, bytes).unwrap();
    let refused = deps(&there, &["import", archive]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(said(&refused).contains("invalid archive"), "{}", said(&refused));
}
