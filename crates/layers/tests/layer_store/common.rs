//! Stores and layers for the tests.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use belljar_layers::store::{
    ExactPackage, LayerBounds, LayerKey, LayerLease, LayerRecipe, LayerScope, LayerStore, LayerStoreError,
    StagedLayer, StoreWarning,
};
use tempfile::TempDir;

/// A folder with a store, and the warnings that it reported.
pub(crate) struct StoreFixture {
    pub(crate) folder: TempDir,
    pub(crate) warnings: Arc<Mutex<Vec<StoreWarning>>>,
}

impl StoreFixture {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), warnings: Arc::default() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("shelf")
    }

    /// Opens the store like a process that has just started.
    pub(crate) fn open(&self) -> LayerStore {
        self.open_with(LayerBounds::default())
    }

    pub(crate) fn open_with(&self, bounds: LayerBounds) -> LayerStore {
        let warnings = Arc::clone(&self.warnings);
        let tell = Arc::new(move |notice: &StoreWarning| warnings.lock().unwrap().push(notice.clone()));
        LayerStore::open(&self.path(), bounds, tell).unwrap()
    }

    pub(crate) fn warnings(&self) -> Vec<StoreWarning> {
        std::mem::take(&mut self.warnings.lock().unwrap())
    }

    pub(crate) fn layer(&self, key: &LayerKey) -> PathBuf {
        self.path().join("layers").join(key.to_string())
    }

    /// Returns whether there is no unfinished work and no leftover.
    pub(crate) fn is_tidy(&self) -> bool {
        count(&self.path().join("staging")) == 0 && count(&self.path().join("turns")) == 0
    }
}

impl Drop for StoreFixture {
    fn drop(&mut self) {
        // An unprivileged user cannot remove the content of read-only folders.
        unseal(&self.path());
    }
}

pub(crate) fn unseal(path: &Path) {
    let Ok(meta) = fs::symlink_metadata(path) else { return };
    if meta.is_dir() {
        let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o700));
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            unseal(&entry.path());
        }
    }
}

pub(crate) fn count(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

pub(crate) fn recipe(name: &str) -> LayerRecipe {
    let package = ExactPackage {
        name: name.to_owned(),
        version: "1.0".to_owned(),
        hashes: vec!["sha256:00".to_owned()],
    };
    LayerRecipe {
        registry: "https://pypi.org/simple".to_owned(),
        packages: vec![package],
        interpreter: "cpython-3.12".to_owned(),
        platform: "x86_64-linux-gnu".to_owned(),
        options: Vec::new(),
        scope: LayerScope::Tenant("default".to_owned()),
    }
}

/// Creates files as an installer might.
pub(crate) fn fill(stage: &StagedLayer, name: &str) {
    let top = stage.files();
    fs::create_dir_all(top.join("pkg/sub")).unwrap();
    fs::create_dir(top.join("bin")).unwrap();
    fs::write(top.join("pkg/__init__.py"), format!("name = {name:?}\n")).unwrap();
    fs::write(top.join("pkg/sub/empty"), "").unwrap();
    fs::write(top.join("bin/tool"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(top.join("bin/tool"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("../bin/tool", top.join("pkg/link")).unwrap();
}

pub(crate) async fn publish(store: &LayerStore, name: &str) -> Result<LayerLease, LayerStoreError> {
    let stage = store.stage()?;
    fill(&stage, name);
    store.publish(stage, recipe(name)).await
}
