//! Staging directories for unfinished work. The kernel releases the lock of a killed process; the next
//! process that opens the store finds the lock free and removes the leftovers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Mode;

use super::error::LayerStoreError;
use super::folder::{StoreFolder, random_name};
use super::lock::{FileLock, LockMode};

const LOCK: &str = ".lock";

/// A private directory in `staging`, removed with its content on drop.
#[derive(Debug)]
pub struct StagingDir {
    staging: Arc<StoreFolder>,
    name: String,
    folder: StoreFolder,
    lock: FileLock,
}

impl StagingDir {
    /// Creates a staging directory. The lock comes first: a folder without a held lock is considered
    /// abandoned.
    pub fn new(staging: &Arc<StoreFolder>) -> Result<Self, LayerStoreError> {
        let name = random_name()?;
        let lock = FileLock::acquire(staging, &format!("{name}{LOCK}"), LockMode::Exclusive)?;
        let folder = match staging.open_or_create(&name) {
            Ok(folder) => folder,
            Err(error) => {
                let _ = lock.unlink_file();
                return Err(error);
            }
        };
        Ok(Self { staging: Arc::clone(staging), name, folder, lock })
    }

    /// Returns the directory.
    pub fn folder(&self) -> &StoreFolder {
        &self.folder
    }
}

impl Drop for StagingDir {
    fn drop(&mut self) {
        // If this fails, the directory is removed when the store is opened next.
        if self.staging.remove_tree(&self.name).is_ok() {
            let _ = self.lock.unlink_file();
        }
    }
}

/// Removes the leftovers of killed processes.
pub fn sweep(staging: &Arc<StoreFolder>) -> Result<(), LayerStoreError> {
    for name in staging.names()? {
        let name = name.strip_suffix(LOCK).unwrap_or(&name);
        let Some(lock) = FileLock::try_acquire(staging, &format!("{name}{LOCK}"), LockMode::Exclusive)?
        else {
            continue;
        };
        staging.remove_tree(name)?;
        lock.unlink_file()?;
    }
    Ok(())
}

/// A private folder for the files of a future layer, removed on drop unless it was published.
#[derive(Debug)]
pub struct StagedLayer {
    staging_dir: StagingDir,
    layer: StoreFolder,
    files: PathBuf,
}

/// The folder that becomes the layer, and the one in it for its files.
const LAYER: &str = "layer";
pub(super) const FILES: &str = "files";

impl StagedLayer {
    pub(super) fn new(staging: &Arc<StoreFolder>) -> Result<Self, LayerStoreError> {
        let nook = StagingDir::new(staging)?;
        let layer = nook.folder().open_or_create(LAYER)?;
        let files = layer.open_or_create(FILES)?;
        // A folder inherits some mode bits from its parent.
        rustix::fs::fchmod(&files, Mode::RWXU).map_err(|errno| layer.error("create", FILES, errno))?;
        let files = files.path().to_owned();
        Ok(Self { staging_dir: nook, layer, files })
    }

    /// Returns the folder for the files.
    pub fn files(&self) -> &Path {
        &self.files
    }

    /// Returns the future layer's folder.
    pub(super) fn layer(&self) -> &StoreFolder {
        &self.layer
    }

    /// Returns the parent and the name of the future layer's folder.
    pub(super) fn place(&self) -> (&StoreFolder, &'static str) {
        (self.staging_dir.folder(), LAYER)
    }
}
