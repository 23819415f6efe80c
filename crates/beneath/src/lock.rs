//! File locks between processes. The kernel releases a lock when its process ends, however it ends.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::FolderError;
use crate::folder::{set_modified, unix_seconds};
use crate::store_folder::StoreFolder;

/// How often a waiting process retries.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Timeout for locks that are only held briefly.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// The mode of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    /// Other holders are allowed.
    Shared,
    /// No other holder is allowed.
    Exclusive,
}

/// A held file lock, released on drop.
#[derive(Debug)]
pub struct FileLock {
    file: OwnedFd,
    folder: Arc<StoreFolder>,
    name: String,
}

impl FileLock {
    /// Locks a file by name, creating it if it is missing. Returns `None` if another holder has it.
    ///
    /// # Errors
    /// Names the lock file.
    pub fn try_acquire(
        folder: &Arc<StoreFolder>,
        name: &str,
        how: LockMode,
    ) -> Result<Option<Self>, FolderError> {
        let failed = |errno| folder.error("lock", name, errno);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let operation = match how {
            LockMode::Shared => FlockOperation::NonBlockingLockShared,
            LockMode::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        let file = rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        match rustix::fs::flock(&file, operation) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        }
        // The previous holder may have unlinked the file; then this lock protects nothing.
        let locked = rustix::fs::fstat(&file).map_err(failed)?;
        let named = folder.stat(name)?;
        let same = named.is_some_and(|named| (named.st_dev, named.st_ino) == (locked.st_dev, locked.st_ino));
        Ok(same.then(|| Self { file, folder: Arc::clone(folder), name: name.to_owned() }))
    }

    /// Acquires a lock that is only held briefly. Blocks, with a timeout.
    ///
    /// # Errors
    /// Names the lock file.
    pub fn acquire(folder: &Arc<StoreFolder>, name: &str, how: LockMode) -> Result<Self, FolderError> {
        let begun = Instant::now();
        loop {
            if let Some(lock) = Self::try_acquire(folder, name, how)? {
                return Ok(lock);
            }
            if begun.elapsed() > ACQUIRE_TIMEOUT {
                return Err(FolderError::LockTimeout(folder.path().join(name)));
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Acquires a lock, however long that takes.
    ///
    /// # Errors
    /// Names the lock file.
    pub async fn acquire_async(
        folder: &Arc<StoreFolder>,
        name: &str,
        how: LockMode,
    ) -> Result<Self, FolderError> {
        loop {
            if let Some(lock) = Self::try_acquire(folder, name, how)? {
                return Ok(lock);
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Updates the last use, unless it was updated within `within`.
    pub fn update_last_use(&self, within: Duration) {
        let now = unix_seconds(SystemTime::now()) as i64;
        let noted = rustix::fs::fstat(&self.file).map_or(0, |stat| stat.st_mtime);
        // A time in the future is wrong, too.
        if (0..within.as_secs() as i64).contains(&(now - noted)) {
            return;
        }
        // If this fails, the entry may be removed earlier than necessary.
        let _ = set_modified(&self.file, now);
    }

    /// Unlinks the lock file. Requires an exclusive lock.
    ///
    /// # Errors
    /// Names the lock file.
    pub fn unlink_file(&self) -> Result<(), FolderError> {
        self.folder.unlink(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A waiting thread may have opened a file that is then unlinked.
    #[test]
    fn locks_exclude_each_other_while_the_file_is_unlinked() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let folder = Arc::new(StoreFolder::open_top(folder.path()).unwrap());
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let Some(lock) = FileLock::try_acquire(&folder, "x", LockMode::Exclusive).unwrap()
                        else {
                            continue;
                        };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        lock.unlink_file().unwrap();
                    }
                });
            }
        });
    }
}
