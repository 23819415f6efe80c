//! Staging directories for unfinished work. The kernel releases the lock of a killed process; the next
//! process that opens the store finds the lock free and removes the leftovers.

use std::sync::Arc;

use crate::error::FolderError;
use crate::lock::{FileLock, LockMode};
use crate::store_folder::{StoreFolder, random_name};

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
    ///
    /// # Errors
    /// Names the operation and the path that failed.
    pub fn new(staging: &Arc<StoreFolder>) -> Result<Self, FolderError> {
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
///
/// # Errors
/// Names the operation and the path that failed.
pub fn sweep_staging(staging: &Arc<StoreFolder>) -> Result<(), FolderError> {
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
