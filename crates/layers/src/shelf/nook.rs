//! Staging directories for unfinished work. The kernel releases the lock of a killed process; the next
//! process that opens the store finds the lock free and removes the leftovers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Mode;

use super::error::ShelfError;
use super::folder::{Folder, random_name};
use super::lock::{How, Lock};
use super::remove::remove;

const LOCK: &str = ".lock";

/// A private directory in `staging`, removed with its content on drop.
#[derive(Debug)]
pub struct Nook {
    staging: Arc<Folder>,
    name: String,
    folder: Folder,
    lock: Lock,
}

impl Nook {
    /// Creates a staging directory. The lock comes first: a folder without a held lock is considered
    /// abandoned.
    pub fn new(staging: &Arc<Folder>) -> Result<Self, ShelfError> {
        let name = random_name()?;
        let lock = Lock::take(staging, &format!("{name}{LOCK}"), How::Alone)?;
        let folder = match staging.child(&name) {
            Ok(folder) => folder,
            Err(error) => {
                let _ = lock.remove();
                return Err(error);
            }
        };
        Ok(Self { staging: Arc::clone(staging), name, folder, lock })
    }

    /// Returns the directory.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }
}

impl Drop for Nook {
    fn drop(&mut self) {
        // If this fails, the directory is removed when the store is opened next.
        if remove(&self.staging, &self.name).is_ok() {
            let _ = self.lock.remove();
        }
    }
}

/// Removes the leftovers of killed processes.
pub fn sweep(staging: &Arc<Folder>) -> Result<(), ShelfError> {
    for name in staging.names()? {
        let name = name.strip_suffix(LOCK).unwrap_or(&name);
        let Some(lock) = Lock::try_take(staging, &format!("{name}{LOCK}"), How::Alone)? else { continue };
        remove(staging, name)?;
        lock.remove()?;
    }
    Ok(())
}

/// A private folder for the files of a future layer, removed on drop unless it was published.
#[derive(Debug)]
pub struct Stage {
    nook: Nook,
    layer: Folder,
    files: PathBuf,
}

/// The folder that becomes the layer, and the one in it for its files.
const LAYER: &str = "layer";
pub(super) const FILES: &str = "files";

impl Stage {
    pub(super) fn new(staging: &Arc<Folder>) -> Result<Self, ShelfError> {
        let nook = Nook::new(staging)?;
        let layer = nook.folder().child(LAYER)?;
        let files = layer.child(FILES)?;
        // A folder inherits some mode bits from its parent.
        rustix::fs::fchmod(&files, Mode::RWXU).map_err(|errno| layer.failed("create", FILES, errno))?;
        let files = files.path().to_owned();
        Ok(Self { nook, layer, files })
    }

    /// Returns the folder for the files.
    pub fn files(&self) -> &Path {
        &self.files
    }

    /// Returns the future layer's folder.
    pub(super) fn layer(&self) -> &Folder {
        &self.layer
    }

    /// Returns the parent and the name of the future layer's folder.
    pub(super) fn place(&self) -> (&Folder, &'static str) {
        (self.nook.folder(), LAYER)
    }
}
