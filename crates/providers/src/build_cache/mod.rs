//! The build cache: programs that were built, so that the next run of the same code needs no compiler.
//!
//! ```text
//! find(tenant, key) ─▶ verified BuildOutput, or none: then it is built in a jail, and
//! store(tenant, key, output) ─▶ temporary file ─▶ rename ─▶ FOLDER/TENANT/KEY
//! ```
//!
//! - A key is a hash of everything that a build depends on. Entries are per tenant, and run only in jails of that
//!   tenant: a built program is as hostile as its code.
//! - An entry is read and hashed completely at each use. One that was changed or cut is removed, and built again.
//! - Above its bound, the cache removes the least recently used entries of the tenant that stores the most.
//! - An error of the disk never fails a run: the program is built again.
//!
//! Hashes detect damage and mix-ups, not forgery: anyone who can write this folder is trusted.

mod entry;
mod in_progress;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use belljar_beneath::folder::unix_seconds;
use belljar_beneath::{ContentDigest, FolderError, StoreFolder, random_name};
use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, UTIME_OMIT};

pub(crate) use entry::BuildOutput;
use in_progress::BuildsInProgress;
pub(crate) use in_progress::{BuildTurn, OwnBuild};

/// Largest entry.
const MAX_ENTRY_BYTES: u64 = 64 << 20;
/// Maximum number of entries of all tenants.
const MAX_ENTRIES: usize = 10_000;
/// Part of the bound that may be written before the next sweep. A sweep frees as much.
const SWEEP_DIVISOR: u64 = 16;
/// Precision of the last use.
const LAST_USE_PRECISION: Duration = Duration::from_secs(60);
/// Name prefix of files that are being written.
const TEMPORARY: &str = ".tmp-";
/// Age at which such a file is what a killed process left.
const MAX_TEMPORARY_AGE: Duration = Duration::from_secs(3_600);

/// A cache of built programs in one folder, which several processes can share.
#[derive(Debug)]
pub struct BuildCache {
    folder: PathBuf,
    max_bytes: u64,
    top: OnceLock<Option<StoreFolder>>,
    in_progress: BuildsInProgress,
    /// Bytes written since the last sweep.
    written: AtomicU64,
}

/// An entry on disk.
struct StoredEntry {
    name: String,
    bytes: u64,
    last_use: i64,
}

impl BuildCache {
    /// Creates a cache of at most this size in a folder, which is opened at the first use.
    pub fn new(folder: PathBuf, max_bytes: u64) -> Self {
        // The first write sweeps: earlier processes may have written any amount.
        let (top, in_progress) = (OnceLock::new(), BuildsInProgress::default());
        Self { folder, max_bytes, top, in_progress, written: AtomicU64::new(max_bytes) }
    }

    /// Returns the folder, or `None` if it cannot be used.
    fn top(&self) -> Option<&StoreFolder> {
        self.top.get_or_init(|| StoreFolder::open_top(&self.folder).ok()).as_ref()
    }

    /// Returns whether there is an entry, which may be damaged.
    pub(crate) fn contains(&self, tenant: &str, key: &ContentDigest) -> bool {
        let path = format!("{}/{key}", tenant_folder(tenant));
        self.top().is_some_and(|top| top.stat(&path).is_ok_and(|found| found.is_some()))
    }

    /// Returns whose turn it is to build what [`BuildCache::find`] did not find.
    pub(crate) fn enter(&self, tenant: &str, key: &ContentDigest) -> BuildTurn {
        self.in_progress.enter(tenant, key)
    }

    /// Returns what was built, if every byte of it is as it was stored. Blocks.
    pub(crate) fn find(&self, tenant: &str, key: &ContentDigest) -> Option<BuildOutput> {
        let folder = self.top()?.open(&tenant_folder(tenant)).ok()?;
        let name = key.to_string();
        let entry = folder.read(&name, MAX_ENTRY_BYTES).ok()??;
        match BuildOutput::decode(key, &entry) {
            Some(output) => {
                update_last_use(&folder, &name);
                Some(output)
            }
            None => {
                // If this fails, the entry is replaced after the build.
                let _removed = folder.unlink(&name);
                None
            }
        }
    }

    /// Stores what was built, in place of an earlier entry. Errors are ignored. Blocks.
    pub(crate) fn store(&self, tenant: &str, key: &ContentDigest, output: &BuildOutput) {
        let entry = output.encode(key);
        let bytes = entry.len() as u64;
        if bytes > MAX_ENTRY_BYTES.min(self.max_bytes / SWEEP_DIVISOR) {
            return;
        }
        if self.written.fetch_add(bytes, Ordering::Relaxed) + bytes > self.max_bytes / SWEEP_DIVISOR {
            self.written.store(bytes, Ordering::Relaxed);
            // A sweep that fails is repeated after as much has been written again.
            let _swept = self.sweep();
        }
        let _written = self.write(tenant, key, &entry);
    }

    /// Removes all entries of a tenant. Blocks.
    pub(crate) fn remove_tenant(&self, tenant: &str) -> Result<(), FolderError> {
        self.top().map_or(Ok(()), |top| top.remove_tree(&tenant_folder(tenant)))
    }

    fn write(&self, tenant: &str, key: &ContentDigest, entry: &[u8]) -> Result<(), FolderError> {
        let Some(top) = self.top() else { return Ok(()) };
        let folder = top.open_or_create(&tenant_folder(tenant))?;
        let temporary = format!("{TEMPORARY}{}", random_name()?);
        let written = folder.write(&temporary, entry, Mode::RUSR | Mode::WUSR).and_then(|()| {
            rustix::fs::renameat(&folder, &temporary, &folder, key.to_string())
                .map_err(|errno| folder.error("publish", &temporary, errno))
        });
        if written.is_err() {
            let _removed = folder.unlink(&temporary);
        }
        written
    }

    /// Removes entries until there is room for what may be written before the next sweep.
    fn sweep(&self) -> Result<(), FolderError> {
        let Some(top) = self.top() else { return Ok(()) };
        let mut tenants = BTreeMap::new();
        for tenant in top.names()? {
            let entries = stored_entries(&top.open(&tenant)?)?;
            tenants.insert(tenant, entries);
        }
        let kept_bytes = self.max_bytes - self.max_bytes / SWEEP_DIVISOR;
        let kept_entries = MAX_ENTRIES - MAX_ENTRIES / SWEEP_DIVISOR as usize;
        let size = |entries: &Vec<StoredEntry>| entries.iter().map(|entry| entry.bytes).sum::<u64>();
        let mut sizes: BTreeMap<String, u64> =
            tenants.iter().map(|(tenant, entries)| (tenant.clone(), size(entries))).collect();
        let mut total: u64 = sizes.values().sum();
        let mut count: usize = tenants.values().map(Vec::len).sum();
        while total > kept_bytes || count > kept_entries {
            let Some((tenant, size)) = sizes.iter_mut().max_by_key(|(_, size)| **size) else { break };
            let Some(oldest) = tenants.get_mut(tenant).and_then(Vec::pop) else { break };
            top.open(tenant)?.unlink(&oldest.name)?;
            *size -= oldest.bytes;
            total -= oldest.bytes;
            count -= 1;
        }
        Ok(())
    }
}

/// Returns the entries of a tenant, the least recently used one last. Removes what killed processes left.
fn stored_entries(folder: &StoreFolder) -> Result<Vec<StoredEntry>, FolderError> {
    let now = unix_seconds(SystemTime::now()).cast_signed();
    let mut entries = Vec::new();
    for name in folder.names()? {
        let Some(stat) = folder.stat(&name)? else { continue };
        let last_use = stat.st_mtime;
        if !name.starts_with(TEMPORARY) {
            entries.push(StoredEntry { name, bytes: stat.st_size.unsigned_abs(), last_use });
        } else if now.saturating_sub(last_use) > MAX_TEMPORARY_AGE.as_secs().cast_signed() {
            folder.unlink(&name)?;
        }
    }
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.last_use));
    Ok(entries)
}

fn update_last_use(folder: &StoreFolder, name: &str) {
    let now = unix_seconds(SystemTime::now()).cast_signed();
    let is_recent = |last_use: i64| now.saturating_sub(last_use) < LAST_USE_PRECISION.as_secs().cast_signed();
    if folder.stat(name).is_ok_and(|found| found.is_some_and(|stat| is_recent(stat.st_mtime))) {
        return;
    }
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ },
        last_modification: Timespec { tv_sec: now, tv_nsec: 0 },
    };
    // Without it, the entry only goes earlier.
    let _set = rustix::fs::utimensat(folder, name, &times, AtFlags::SYMLINK_NOFOLLOW);
}

/// Returns the name of a tenant's folder.
fn tenant_folder(tenant: &str) -> String {
    ContentDigest::from_parts("belljar build tenant", [tenant]).to_string()
}

#[cfg(test)]
mod tests;
