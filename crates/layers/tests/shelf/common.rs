//! Stores and layers for the tests.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use belljar_layers::shelf::{Bounds, Held, Key, Notice, Package, Recipe, Scope, Shelf, ShelfError, Stage};
use tempfile::TempDir;

/// A folder with a store, and the warnings that it reported.
pub(crate) struct Place {
    pub(crate) folder: TempDir,
    pub(crate) told: Arc<Mutex<Vec<Notice>>>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), told: Arc::default() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("shelf")
    }

    /// Opens the store like a process that has just started.
    pub(crate) fn open(&self) -> Shelf {
        self.open_with(Bounds::default())
    }

    pub(crate) fn open_with(&self, bounds: Bounds) -> Shelf {
        let told = Arc::clone(&self.told);
        let tell = Arc::new(move |notice: &Notice| told.lock().unwrap().push(notice.clone()));
        Shelf::open(&self.path(), bounds, tell).unwrap()
    }

    pub(crate) fn told(&self) -> Vec<Notice> {
        std::mem::take(&mut self.told.lock().unwrap())
    }

    pub(crate) fn layer(&self, key: &Key) -> PathBuf {
        self.path().join("layers").join(key.to_string())
    }

    /// Returns whether there is no unfinished work and no leftover.
    pub(crate) fn is_tidy(&self) -> bool {
        count(&self.path().join("staging")) == 0 && count(&self.path().join("turns")) == 0
    }
}

impl Drop for Place {
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

pub(crate) fn recipe(name: &str) -> Recipe {
    let package =
        Package { name: name.to_owned(), version: "1.0".to_owned(), hashes: vec!["sha256:00".to_owned()] };
    Recipe {
        registry: "https://pypi.org/simple".to_owned(),
        packages: vec![package],
        interpreter: "cpython-3.12".to_owned(),
        platform: "x86_64-linux-gnu".to_owned(),
        options: Vec::new(),
        scope: Scope::Tenant("default".to_owned()),
    }
}

/// Creates files as an installer might.
pub(crate) fn fill(stage: &Stage, name: &str) {
    let top = stage.files();
    fs::create_dir_all(top.join("pkg/sub")).unwrap();
    fs::create_dir(top.join("bin")).unwrap();
    fs::write(top.join("pkg/__init__.py"), format!("name = {name:?}\n")).unwrap();
    fs::write(top.join("pkg/sub/empty"), "").unwrap();
    fs::write(top.join("bin/tool"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(top.join("bin/tool"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("../bin/tool", top.join("pkg/link")).unwrap();
}

pub(crate) async fn publish(shelf: &Shelf, name: &str) -> Result<Held, ShelfError> {
    let stage = shelf.stage()?;
    fill(&stage, name);
    shelf.publish(stage, recipe(name)).await
}
