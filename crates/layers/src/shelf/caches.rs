//! Installer caches. They grow with every installation, so the least recently used are removed, each cache as
//! a whole and never one that is in use.
//!
//! ```text
//! installers/SCOPE/NAME/       an installer's cache
//! installers/SCOPE/NAME.lock   shared by users of the cache, exclusive for its removal; mtime: last use
//! installers/looked            mtime is the time of the last size check
//! ```

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;

use super::digest::Digest;
use super::disk::seconds;
use super::error::ShelfError;
use super::folder::{Folder, OPEN_FOLDER, names};
use super::lock::{How, Lock};
use super::manifest::Scope;
use super::nook::Nook;

const LOCK: &str = ".lock";
const LOOKED: &str = "looked";
/// Measuring takes noticeable time per hundred thousand files.
const LOOK_EVERY: Duration = Duration::from_secs(3_600);
/// No real cache is nested deeper.
const MAX_DEPTH: usize = 64;
const BLOCK: u64 = 512;

/// The installer caches of a layer store.
#[derive(Debug, Clone)]
pub struct Caches {
    shelf: PathBuf,
    bytes: u64,
}

/// A lease on a cache: it is not removed while the lease exists.
#[derive(Debug)]
pub(crate) struct Lent {
    path: PathBuf,
    _lock: Lock,
}

impl Lent {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// A cache that may be removed.
struct Found {
    used: i64,
    /// `None` if it cannot be measured, which counts as too large.
    bytes: Option<u64>,
    scope: Arc<Folder>,
    name: String,
}

impl Caches {
    /// Creates the caches of the store in a folder, with their total size limit.
    pub fn new(shelf: &Path, bytes: u64) -> Self {
        Self { shelf: shelf.to_owned(), bytes }
    }

    /// Leases a cache, creating it if it is missing.
    pub(crate) fn lend(&self, scope: &Scope, name: &str) -> Result<Lent, ShelfError> {
        let scope = match scope {
            Scope::Shared => "shared".to_owned(),
            Scope::Tenant(tenant) => Digest::of("belljar installer cache", [tenant]).to_string(),
        };
        let scope = Arc::new(self.folder()?.child(&scope)?);
        let lock = Lock::take(&scope, &format!("{name}{LOCK}"), How::Shared)?;
        lock.touch(Duration::from_secs(1));
        Ok(Lent { path: scope.child(name)?.path().to_owned(), _lock: lock })
    }

    /// Enforces the size limit, unless that was done within the last hour.
    pub(crate) fn keep_to_bound(&self) -> Result<(), ShelfError> {
        let folder = Arc::new(self.folder()?);
        let looked = folder.stat(LOOKED)?.map(|stat| u64::try_from(stat.st_mtime).unwrap_or(0));
        let since = seconds(SystemTime::now()).saturating_sub(LOOK_EVERY.as_secs());
        let Some(lock) = Lock::try_take(&folder, LOOKED, How::Alone)? else { return Ok(()) };
        if looked.is_some_and(|looked| looked < since) {
            lock.touch(Duration::ZERO);
            self.prune(self.bytes)?;
        }
        Ok(())
    }

    /// Removes the least recently used caches until at most `to_bytes` are left. Returns the number of bytes
    /// removed.
    pub fn prune(&self, to_bytes: u64) -> Result<u64, ShelfError> {
        let mut all = self.found()?;
        all.sort_by_key(|cache| cache.used);
        let room = |cache: &Found| u128::from(cache.bytes.unwrap_or(u64::MAX));
        let (mut left, mut removed) = (all.iter().map(room).sum::<u128>(), 0_u64);
        let staging = Arc::new(Folder::top(&self.shelf)?.child("staging")?);
        for cache in all {
            if left <= u128::from(to_bytes) {
                break;
            }
            let lock = format!("{}{LOCK}", cache.name);
            let Some(lock) = Lock::try_take(&cache.scope, &lock, How::Alone)? else { continue };
            let nook = Nook::new(&staging)?;
            let moved = rustix::fs::renameat(&*cache.scope, &cache.name, nook.folder(), &cache.name);
            moved.map_err(|errno| cache.scope.failed("remove", &cache.name, errno))?;
            lock.remove()?;
            left -= room(&cache);
            removed = removed.saturating_add(cache.bytes.unwrap_or(0));
        }
        Ok(removed)
    }

    fn folder(&self) -> Result<Folder, ShelfError> {
        Folder::top(&self.shelf)?.child("installers")
    }

    fn found(&self) -> Result<Vec<Found>, ShelfError> {
        let (top, mut all) = (self.folder()?, Vec::new());
        for scope in top.names()?.into_iter().filter(|name| name != LOOKED) {
            let scope = Arc::new(top.open(&scope)?);
            for name in scope.names()?.into_iter().filter(|name| !name.ends_with(LOCK)) {
                let used = scope.stat(&format!("{name}{LOCK}"))?.map_or(0, |stat| stat.st_mtime);
                let bytes = size(scope.as_fd(), &name);
                all.push(Found { used, bytes, scope: Arc::clone(&scope), name });
            }
        }
        Ok(all)
    }
}

/// Returns the disk usage of a folder.
fn size(parent: BorrowedFd<'_>, name: &str) -> Option<u64> {
    let opened = rustix::fs::openat(parent, name, OPEN_FOLDER, Mode::empty());
    opened.and_then(|folder| below(folder.as_fd(), MAX_DEPTH)).ok()
}

fn below(folder: BorrowedFd<'_>, depth: usize) -> Result<u64, Errno> {
    let mut bytes = 0_u64;
    for name in names(folder, usize::MAX)? {
        bytes = bytes.saturating_add(entry(folder, &name, depth)?);
    }
    Ok(bytes)
}

fn entry(folder: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<u64, Errno> {
    let stat = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        // Another process removed it meanwhile.
        Err(Errno::NOENT) => return Ok(0),
        stat => stat?,
    };
    let own = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK);
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Ok(own);
    }
    let depth = depth.checked_sub(1).ok_or(Errno::LOOP)?;
    match rustix::fs::openat(folder, name, OPEN_FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => Ok(own),
        inner => Ok(own.saturating_add(below(inner?.as_fd(), depth)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caches() -> (tempfile::TempDir, Caches) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let caches = Caches::new(folder.path(), 1 << 20);
        (folder, caches)
    }

    /// Creates a cache of one megabyte with the given last use.
    fn fill(caches: &Caches, name: &str, used: i64) -> PathBuf {
        let lent = caches.lend(&Scope::Shared, name).unwrap();
        let inner = lent.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("c"), vec![1; 1 << 20]).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(used as u64);
        let lock = lent.path().with_extension("lock");
        std::fs::File::options().write(true).open(lock).unwrap().set_modified(time).unwrap();
        lent.path().to_owned()
    }

    #[test]
    fn the_least_recently_used_goes_and_what_is_in_use_stays() {
        let (_folder, caches) = caches();
        let (old, older, newer) =
            (fill(&caches, "uv", 200), fill(&caches, "pip", 100), fill(&caches, "bun", 300));
        let in_use = caches.lend(&Scope::Shared, "pip").unwrap();
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
        assert_eq!(caches.lend(&Scope::Shared, "uv").unwrap().path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn nobody_looks_twice_within_an_hour() {
        let (folder, caches) = caches();
        let (one, two) = (fill(&caches, "uv", 100), fill(&caches, "pip", 200));
        caches.keep_to_bound().unwrap();
        assert!(one.exists() && two.exists());
        let looked = std::fs::File::options().write(true).open(folder.path().join("installers/looked"));
        looked.unwrap().set_modified(SystemTime::now() - 2 * LOOK_EVERY).unwrap();
        caches.keep_to_bound().unwrap();
        assert!(!one.exists());
    }

    /// An installer unpacks untrusted archives.
    #[test]
    fn links_are_not_followed_and_depths_are_no_way_out() {
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
