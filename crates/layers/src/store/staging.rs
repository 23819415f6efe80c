//! The folder in which a future layer is installed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_beneath::{StagingDir, StoreFolder};
use rustix::fs::Mode;

use super::error::LayerStoreError;

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
        let staging_dir = StagingDir::new(staging)?;
        let layer = staging_dir.folder().open_or_create(LAYER)?;
        let files = layer.open_or_create(FILES)?;
        // A folder inherits some mode bits from its parent.
        rustix::fs::fchmod(&files, Mode::RWXU).map_err(|errno| layer.error("create", FILES, errno))?;
        let files = files.path().to_owned();
        Ok(Self { staging_dir, layer, files })
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
