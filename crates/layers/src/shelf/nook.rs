//! Private places for work that is not done yet. What a process leaves when it is killed is recognised by its lock,
//! which the kernel has let go of, and removed by whoever opens the shelf next.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Mode;

use super::error::ShelfError;
use super::folder::{Folder, random_name};
use super::lock::{How, Lock};
use super::remove::remove;

const LOCK: &str = ".lock";

/// A place of one's own in `staging`; removed with everything in it when this is gone.
#[derive(Debug)]
pub struct Nook {
    staging: Arc<Folder>,
    name: String,
    folder: Folder,
    lock: Lock,
}

impl Nook {
    /// The lock comes first: a folder whose lock nobody holds is nobody's.
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

    /// The place.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }
}

impl Drop for Nook {
    fn drop(&mut self) {
        // What cannot be removed now is removed when the shelf is opened next.
        if remove(&self.staging, &self.name).is_ok() {
            let _ = self.lock.remove();
        }
    }
}

/// Removes what processes that are gone have left.
pub fn sweep(staging: &Arc<Folder>) -> Result<(), ShelfError> {
    for name in staging.names()? {
        let name = name.strip_suffix(LOCK).unwrap_or(&name);
        let Some(lock) = Lock::try_take(staging, &format!("{name}{LOCK}"), How::Alone)? else { continue };
        remove(staging, name)?;
        lock.remove()?;
    }
    Ok(())
}

/// A private folder for what is to become a layer; gone with this unless it was published.
#[derive(Debug)]
pub struct Stage {
    nook: Nook,
    layer: Folder,
    files: PathBuf,
}

/// The folder in a nook that becomes the layer's, and the one in that for its files.
const LAYER: &str = "layer";
pub(super) const FILES: &str = "files";

impl Stage {
    pub(super) fn new(staging: &Arc<Folder>) -> Result<Self, ShelfError> {
        let nook = Nook::new(staging)?;
        let layer = nook.folder().child(LAYER)?;
        let files = layer.child(FILES)?;
        // A folder takes some bits over from the one above it.
        rustix::fs::fchmod(&files, Mode::RWXU).map_err(|errno| layer.failed("make", FILES, errno))?;
        let files = files.path().to_owned();
        Ok(Self { nook, layer, files })
    }

    /// Where the files go.
    pub fn files(&self) -> &Path {
        &self.files
    }

    /// The future layer's folder.
    pub(super) fn layer(&self) -> &Folder {
        &self.layer
    }

    /// Where the future layer's folder is, and its name.
    pub(super) fn place(&self) -> (&Folder, &'static str) {
        (self.nook.folder(), LAYER)
    }
}
