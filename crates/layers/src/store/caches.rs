//! Installer caches. They grow with every installation, so the least recently used are removed, each cache as
//! a whole and never one that is in use.
//!
//! ```text
//! installers/SCOPE/NAME/       an installer's cache
//! installers/SCOPE/NAME.lock   shared by users of the cache, exclusive for its removal; mtime: last use
//! installers/looked            mtime is the time of the last size check
//! ```

use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use belljar_beneath::folder::unix_seconds;
use belljar_beneath::folder::{Mounts, open_subfolder};
use belljar_beneath::{ContentDigest, FileLock, LockMode, StagingDir, StoreFolder};
use belljar_beneath::{MeasureLimits, TreeSize, measure};

use super::error::LayerStoreError;
use super::manifest::LayerScope;

const LOCK: &str = ".lock";
const CHECKED_FILE: &str = "looked";
/// Measuring takes noticeable time per hundred thousand files.
const CHECK_INTERVAL: Duration = Duration::from_secs(3_600);
/// No real cache is nested deeper.
const MAX_DEPTH: usize = 64;

/// The installer caches of a layer store.
#[derive(Debug, Clone)]
pub struct InstallerCaches {
    store: PathBuf,
    max_bytes: u64,
}

/// A lease on a cache: it is not removed while the lease exists.
#[derive(Debug)]
pub(crate) struct CacheLease {
    path: PathBuf,
    _lock: FileLock,
}

impl CacheLease {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// A cache that may be removed.
struct CacheEntry {
    used: i64,
    /// `None` if it cannot be measured, which counts as too large.
    bytes: Option<u64>,
    scope: Arc<StoreFolder>,
    name: String,
}

impl InstallerCaches {
    /// Creates the caches of the store in a folder, with their total size limit.
    pub fn new(store: &Path, bytes: u64) -> Self {
        Self { store: store.to_owned(), max_bytes: bytes }
    }

    /// Leases a cache, creating it if it is missing.
    pub(crate) fn lease(&self, scope: &LayerScope, name: &str) -> Result<CacheLease, LayerStoreError> {
        let scope = Arc::new(self.folder()?.open_or_create(&folder_name(scope))?);
        let lock = FileLock::acquire(&scope, &format!("{name}{LOCK}"), LockMode::Shared)?;
        lock.update_last_use(Duration::from_secs(1));
        Ok(CacheLease { path: scope.open_or_create(name)?.path().to_owned(), _lock: lock })
    }

    /// Enforces the size limit, unless that was done within the last hour.
    pub(crate) fn enforce_limit(&self) -> Result<(), LayerStoreError> {
        let folder = Arc::new(self.folder()?);
        let looked = folder.stat(CHECKED_FILE)?.map(|stat| u64::try_from(stat.st_mtime).unwrap_or(0));
        let since = unix_seconds(SystemTime::now()).saturating_sub(CHECK_INTERVAL.as_secs());
        let Some(lock) = FileLock::try_acquire(&folder, CHECKED_FILE, LockMode::Exclusive)? else {
            return Ok(());
        };
        if looked.is_some_and(|looked| looked < since) {
            lock.update_last_use(Duration::ZERO);
            self.prune(self.max_bytes)?;
        }
        Ok(())
    }

    /// Removes the least recently used caches until at most `to_bytes` are left. Returns the number of bytes
    /// removed.
    pub fn prune(&self, to_bytes: u64) -> Result<u64, LayerStoreError> {
        let mut all = self.entries()?;
        all.sort_by_key(|cache| cache.used);
        let room = |cache: &CacheEntry| u128::from(cache.bytes.unwrap_or(u64::MAX));
        let (mut left, mut removed) = (all.iter().map(room).sum::<u128>(), 0_u64);
        let staging = self.staging()?;
        for cache in all {
            if left <= u128::from(to_bytes) {
                break;
            }
            if remove_unused(&cache.scope, &cache.name, &staging)? {
                left -= room(&cache);
                removed = removed.saturating_add(cache.bytes.unwrap_or(0));
            }
        }
        Ok(removed)
    }

    /// Removes the caches of a scope, except those in use.
    pub(crate) fn remove_scope(&self, scope: &LayerScope) -> Result<(), LayerStoreError> {
        let scope = Arc::new(self.folder()?.open_or_create(&folder_name(scope))?);
        let staging = self.staging()?;
        for name in cache_names(&scope)? {
            remove_unused(&scope, &name, &staging)?;
        }
        Ok(())
    }

    fn staging(&self) -> Result<Arc<StoreFolder>, LayerStoreError> {
        Ok(Arc::new(StoreFolder::open_top(&self.store)?.open_or_create("staging")?))
    }

    fn folder(&self) -> Result<StoreFolder, LayerStoreError> {
        Ok(StoreFolder::open_top(&self.store)?.open_or_create("installers")?)
    }

    fn entries(&self) -> Result<Vec<CacheEntry>, LayerStoreError> {
        let (top, mut all) = (self.folder()?, Vec::new());
        for scope in top.names()?.into_iter().filter(|name| name != CHECKED_FILE) {
            let scope = Arc::new(top.open(&scope)?);
            for name in cache_names(&scope)? {
                let used = scope.stat(&format!("{name}{LOCK}"))?.map_or(0, |stat| stat.st_mtime);
                let bytes = CString::new(&*name).ok().and_then(|name| disk_usage(&scope, &name));
                all.push(CacheEntry { used, bytes, scope: Arc::clone(&scope), name });
            }
        }
        Ok(all)
    }
}

/// Returns the name of a scope's folder.
fn folder_name(scope: &LayerScope) -> String {
    match scope {
        LayerScope::Shared => "shared".to_owned(),
        LayerScope::Tenant(tenant) => {
            ContentDigest::from_parts("belljar installer cache", [tenant]).to_string()
        }
    }
}

fn cache_names(scope: &StoreFolder) -> Result<Vec<String>, LayerStoreError> {
    Ok(scope.names()?.into_iter().filter(|name| !name.ends_with(LOCK)).collect())
}

/// Removes a cache that is not in use, and returns whether it did.
fn remove_unused(
    scope: &Arc<StoreFolder>,
    name: &str,
    staging: &Arc<StoreFolder>,
) -> Result<bool, LayerStoreError> {
    let Some(lock) = FileLock::try_acquire(scope, &format!("{name}{LOCK}"), LockMode::Exclusive)? else {
        return Ok(false);
    };
    let staging_dir = StagingDir::new(staging)?;
    let moved = rustix::fs::renameat(&**scope, name, staging_dir.folder(), name);
    moved.map_err(|errno| scope.error("remove", name, errno))?;
    lock.unlink_file()?;
    Ok(true)
}

/// Returns the disk usage of a cache.
fn disk_usage(scope: &StoreFolder, name: &CStr) -> Option<u64> {
    let limits = MeasureLimits { bytes: u64::MAX, entries: u64::MAX, depth: MAX_DEPTH };
    match measure(|| open_subfolder(scope.as_fd(), name, Mounts::Refuse), limits) {
        Ok(TreeSize::Bytes(bytes)) => Some(bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caches() -> (tempfile::TempDir, InstallerCaches) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let caches = InstallerCaches::new(folder.path(), 1 << 20);
        (folder, caches)
    }

    /// Creates a cache of one megabyte with the given last use.
    fn fill(caches: &InstallerCaches, name: &str, used: i64) -> PathBuf {
        let lent = caches.lease(&LayerScope::Shared, name).unwrap();
        let inner = lent.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("c"), vec![1; 1 << 20]).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(used as u64);
        let lock = lent.path().with_extension("lock");
        std::fs::File::options().write(true).open(lock).unwrap().set_modified(time).unwrap();
        lent.path().to_owned()
    }

    #[test]
    fn the_least_recently_used_cache_is_removed_unless_in_use() {
        let (_folder, caches) = caches();
        let (old, older, newer) =
            (fill(&caches, "uv", 200), fill(&caches, "pip", 100), fill(&caches, "bun", 300));
        let in_use = caches.lease(&LayerScope::Shared, "pip").unwrap();
        std::fs::File::options()
            .write(true)
            .open(older.with_extension("lock"))
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH)
            .unwrap();
        assert!(caches.prune(5 << 19).unwrap() >= 1 << 20);
        assert_eq!((old.exists(), older.exists(), newer.exists()), (false, true, true));
        drop(in_use);
        assert!(caches.prune(0).unwrap() >= 2 << 20);
        assert!(!older.exists() && !newer.exists());
        // The next user gets an empty cache.
        assert_eq!(caches.lease(&LayerScope::Shared, "uv").unwrap().path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn the_caches_of_one_tenant_are_removed_unless_in_use() {
        let (_folder, caches) = caches();
        let lease = |tenant: &str, name| caches.lease(&LayerScope::Tenant(tenant.to_owned()), name).unwrap();
        let path = |tenant, name| lease(tenant, name).path().to_owned();
        let (gone, other) = (path("ada", "uv"), path("bob", "uv"));
        let in_use = lease("ada", "pip");
        caches.remove_scope(&LayerScope::Tenant("ada".to_owned())).unwrap();
        assert_eq!((gone.exists(), in_use.path().exists(), other.exists()), (false, true, true));
    }

    #[test]
    fn the_size_is_checked_at_most_hourly() {
        let (folder, caches) = caches();
        let (one, two) = (fill(&caches, "uv", 100), fill(&caches, "pip", 200));
        caches.enforce_limit().unwrap();
        assert!(one.exists() && two.exists());
        let looked = std::fs::File::options().write(true).open(folder.path().join("installers/looked"));
        looked.unwrap().set_modified(SystemTime::now() - 2 * CHECK_INTERVAL).unwrap();
        caches.enforce_limit().unwrap();
        assert!(!one.exists());
    }

    /// An installer unpacks untrusted archives.
    #[test]
    fn pruning_follows_no_links_and_handles_deep_trees() {
        let (folder, caches) = caches();
        let outside = folder.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "x").unwrap();
        let cache = fill(&caches, "uv", 100);
        std::os::unix::fs::symlink(&outside, cache.join("link")).unwrap();
        let deep = (0..100).fold(cache.join("deep"), |path, _| path.join("d"));
        std::fs::create_dir_all(&deep).unwrap();
        caches.prune(1 << 30).unwrap();
        assert!(!cache.exists() && outside.join("kept").exists());
    }
}
