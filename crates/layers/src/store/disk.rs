//! The store's folder: finding, publishing and quarantining layers. All functions block.
//!
//! ```text
//! layers/KEY/manifest.json, files/   complete and read-only; appears and disappears only by rename
//! locks/KEY                          shared by users of a layer, exclusive for its removal; mtime: last use
//! locks/change                       held briefly while a layer is moved away or removed
//! staging/NAME/, NAME.lock           unfinished work; abandoned if the lock is free
//! broken/KEY-NAME/                   quarantined layers
//! resolutions/DIGEST                 cached resolutions
//! turns/DIGEST                       held by the process that does the work
//! ```

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use belljar_beneath::folder::{sync_files, unix_seconds};
use belljar_beneath::{FileLock, LockMode, StoreFolder, random_name, sweep_staging};
use rustix::fs::Mode;
use rustix::io::Errno;

use super::error::LayerStoreError;
use super::inventory::CachedUsage;
use super::manifest::{LayerKey, LayerRecipe, Manifest};
use super::staging::{FILES, StagedLayer};
use super::tree::{ModePolicy, TreeSummary, summarize};
use super::{LayerBounds, StoreWarning, WarningSink};

const MANIFEST: &str = "manifest.json";
const MAX_MANIFEST_BYTES: u64 = 16 << 20;
const CHANGE_LOCK: &str = "change";
/// Precision of the last use: it is updated at most once per interval.
const LAST_USE_PRECISION: Duration = Duration::from_secs(60);
/// Errors that indicate a damaged layer, rather than a problem of this machine.
const DAMAGE_ERRNOS: [Errno; 5] = [Errno::NOENT, Errno::NOTDIR, Errno::ISDIR, Errno::LOOP, Errno::IO];
/// Maximum number of attempts to publish if other processes interfere.
const MAX_PUBLISH_ATTEMPTS: u32 = 5;

/// The open folder, and the layers that this process has verified.
pub(super) struct DiskStore {
    pub(super) bounds: LayerBounds,
    pub(super) layers: StoreFolder,
    pub(super) locks: Arc<StoreFolder>,
    pub(super) staging: Arc<StoreFolder>,
    pub(super) broken: StoreFolder,
    pub(super) resolutions: StoreFolder,
    pub(super) work_locks: Arc<StoreFolder>,
    pub(super) warnings: WarningSink,
    pub(super) cached_usage: Mutex<Option<CachedUsage>>,
    verified: Mutex<HashMap<LayerKey, VerifiedLayer>>,
}

impl fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("layers", &self.layers.path()).finish_non_exhaustive()
    }
}

/// A layer that this process has verified.
struct VerifiedLayer {
    identity: Identity,
    manifest: Arc<Manifest>,
    held: Weak<LeasedLayer>,
}

/// Identifies a layer under a key and detects changes: inode and ctime of its two entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity([(u64, i64, i128); 2]);

/// A lease on a layer: the layer cannot be removed while the lease or a clone of it exists.
#[derive(Debug, Clone)]
pub struct LayerLease(Arc<LeasedLayer>);

#[derive(Debug)]
struct LeasedLayer {
    manifest: Arc<Manifest>,
    files: PathBuf,
    _lock: FileLock,
}

impl LayerLease {
    /// Returns the layer's key.
    pub fn key(&self) -> LayerKey {
        self.0.manifest.key
    }

    /// Returns the folder to mount read-only.
    pub fn files(&self) -> &Path {
        &self.0.files
    }

    /// Returns the layer's manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.0.manifest
    }
}

impl DiskStore {
    pub(super) fn open(
        folder: &Path,
        bounds: LayerBounds,
        tell: WarningSink,
    ) -> Result<Self, LayerStoreError> {
        let top = StoreFolder::open_top(folder)?;
        let disk = Self {
            bounds,
            layers: top.open_or_create("layers")?,
            locks: Arc::new(top.open_or_create("locks")?),
            staging: Arc::new(top.open_or_create("staging")?),
            broken: top.open_or_create("broken")?,
            resolutions: top.open_or_create("resolutions")?,
            work_locks: Arc::new(top.open_or_create("turns")?),
            warnings: tell,
            cached_usage: Mutex::default(),
            verified: Mutex::default(),
        };
        sweep_staging(&disk.staging)?;
        Ok(disk)
    }

    /// Returns a layer that this process already uses. Costs three `stat` calls.
    pub(super) fn find_in_use(&self, key: &LayerKey) -> Result<Option<LayerLease>, LayerStoreError> {
        let in_use = self.verified().get(key).and_then(|known| Some((known.identity, known.held.upgrade()?)));
        let Some((identity, inner)) = in_use else { return Ok(None) };
        // Another process may have quarantined it.
        Ok((self.identity(key)? == Some(identity)).then_some(LayerLease(inner)))
    }

    /// Finds a layer, and verifies it at its first use in this process. Quarantines a damaged one.
    pub(super) fn find(&self, key: &LayerKey) -> Result<Option<LayerLease>, LayerStoreError> {
        if self.identity(key)?.is_none() {
            return Ok(None);
        }
        let lock = FileLock::acquire(&self.locks, &key.to_string(), LockMode::Shared)?;
        let Some(identity) = self.identity(key)? else { return Ok(None) };
        let known = self
            .verified()
            .get(key)
            .filter(|known| known.identity == identity)
            .map(|known| Arc::clone(&known.manifest));
        let manifest = match known {
            Some(manifest) => manifest,
            None => match self.verify_layer(key) {
                Ok(manifest) => Arc::new(manifest),
                Err(LayerStoreError::Damaged { why, .. }) => {
                    self.quarantine(key, identity, why)?;
                    return Ok(None);
                }
                Err(error) => return Err(error),
            },
        };
        Ok(Some(self.lease(identity, manifest, lock)))
    }

    fn lease(&self, identity: Identity, manifest: Arc<Manifest>, lock: FileLock) -> LayerLease {
        lock.update_last_use(LAST_USE_PRECISION);
        let key = manifest.key;
        let files = self.layers.path().join(key.to_string()).join(FILES);
        let inner = Arc::new(LeasedLayer { manifest: Arc::clone(&manifest), files, _lock: lock });
        self.verified().insert(key, VerifiedLayer { identity, manifest, held: Arc::downgrade(&inner) });
        LayerLease(inner)
    }

    /// Publishes the files of a stage. Returns the existing layer if there is one.
    pub(super) fn publish(
        &self,
        stage: &StagedLayer,
        recipe: LayerRecipe,
        expected: Option<&TreeSummary>,
    ) -> Result<LayerLease, LayerStoreError> {
        let survey = summarize(open_files(stage.layer())?, ModePolicy::Seal, self.bounds.layer_bytes)?;
        if expected.is_some_and(|expected| *expected != survey) {
            return Err(LayerStoreError::Archive("its files do not match its manifest".to_owned()));
        }
        let TreeSummary { tree, bytes, entries } = survey;
        let key = recipe.key();
        let manifest =
            Manifest { key, recipe, tree, bytes, entries, made_at: unix_seconds(SystemTime::now()) };
        let text =
            serde_json::to_vec(&manifest).map_err(|error| LayerStoreError::System(error.to_string()))?;
        if text.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(LayerStoreError::TooLarge { what: "bytes in a manifest", limit: MAX_MANIFEST_BYTES });
        }
        stage.layer().write(MANIFEST, &text, Mode::from_raw_mode(0o444))?;
        let layer = stage.layer();
        sync_files(layer).map_err(|errno| LayerStoreError::io("write", layer.path(), errno))?;
        self.publish_stage(stage, Arc::new(manifest))
    }

    fn publish_stage(
        &self,
        stage: &StagedLayer,
        manifest: Arc<Manifest>,
    ) -> Result<LayerLease, LayerStoreError> {
        let key = manifest.key;
        let name = key.to_string();
        for _ in 0..MAX_PUBLISH_ATTEMPTS {
            // Locked before the layer becomes visible, so that it cannot be removed before its first use.
            let lock = FileLock::acquire(&self.locks, &name, LockMode::Shared)?;
            let (from, staged) = stage.place();
            // A rename replaces an empty folder only, and a layer is never empty.
            match rustix::fs::renameat(from, staged, &self.layers, &name) {
                Ok(()) => {
                    let synced = rustix::fs::fsync(&self.layers);
                    synced.map_err(|errno| LayerStoreError::io("write", self.layers.path(), errno))?;
                    let identity = self.identity(&key)?;
                    let identity = identity.ok_or(LayerStoreError::NotFound(key))?;
                    return Ok(self.lease(identity, manifest, lock));
                }
                Err(Errno::EXIST | Errno::NOTEMPTY) => {}
                Err(errno) => return Err(self.layers.error("publish", &name, errno).into()),
            }
            if let Some(theirs) = self.find(&key)? {
                return Ok(theirs);
            }
        }
        Err(LayerStoreError::LockTimeout(self.layers.path().join(name)))
    }

    /// Reads a whole layer. Returns [`LayerStoreError::Damaged`] if anything differs from what was published.
    pub(super) fn verify_layer(&self, key: &LayerKey) -> Result<Manifest, LayerStoreError> {
        self.compare_with_manifest(key).map_err(|error| {
            let why = match error {
                LayerStoreError::NotAllowed { path, why } => format!("'{path}': {why}"),
                LayerStoreError::TooLarge { what, .. } => format!("more {what} than a layer has"),
                LayerStoreError::ReadOnly { .. } => "it cannot be read".to_owned(),
                LayerStoreError::Io { errno, .. } if DAMAGE_ERRNOS.contains(&errno) => {
                    format!("it cannot be read: {errno}")
                }
                // A temporary problem of this machine does not mean that the layer is damaged.
                error => return error,
            };
            LayerStoreError::Damaged { key: *key, why }
        })
    }

    fn compare_with_manifest(&self, key: &LayerKey) -> Result<Manifest, LayerStoreError> {
        let broken = |why: &str| Err(LayerStoreError::Damaged { key: *key, why: why.to_owned() });
        let folder = self.layers.open(&key.to_string())?;
        let Some(manifest) = self.manifest(key)? else { return broken("its manifest cannot be read") };
        if manifest.key != *key || !manifest.key_matches_recipe() {
            return broken("its manifest belongs to another layer");
        }
        let mut names = folder.names()?;
        names.sort();
        if names != [FILES, MANIFEST] {
            return broken("unexpected entries next to its files");
        }
        let found = summarize(open_files(&folder)?, ModePolicy::Check, u64::MAX)?;
        if found != (TreeSummary { tree: manifest.tree, bytes: manifest.bytes, entries: manifest.entries }) {
            return broken("its files differ from those published");
        }
        Ok(manifest)
    }

    /// Reads a whole layer, and quarantines it if it is damaged.
    pub(super) fn verify(&self, key: &LayerKey) -> Result<Manifest, LayerStoreError> {
        if self.identity(key)?.is_none() {
            return Err(LayerStoreError::NotFound(*key));
        }
        let _lock = FileLock::acquire(&self.locks, &key.to_string(), LockMode::Shared)?;
        let identity = self.identity(key)?.ok_or(LayerStoreError::NotFound(*key))?;
        let checked = self.verify_layer(key);
        if let Err(LayerStoreError::Damaged { why, .. }) = &checked {
            self.quarantine(key, identity, why.clone())?;
        }
        checked
    }

    /// Returns a layer's manifest; `None` if it cannot be read.
    pub(super) fn manifest(&self, key: &LayerKey) -> Result<Option<Manifest>, LayerStoreError> {
        let text = self.layers.read(&format!("{key}/{MANIFEST}"), MAX_MANIFEST_BYTES)?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// Quarantines a damaged layer, even if it is in use, unless it has been replaced since.
    pub(super) fn quarantine(
        &self,
        key: &LayerKey,
        seen: Identity,
        why: String,
    ) -> Result<(), LayerStoreError> {
        let name = key.to_string();
        let _change = FileLock::acquire(&self.locks, CHANGE_LOCK, LockMode::Exclusive)?;
        if self.identity(key)? != Some(seen) {
            return Ok(());
        }
        let moved =
            rustix::fs::renameat(&self.layers, &name, &self.broken, format!("{name}-{}", random_name()?));
        moved.map_err(|errno| self.layers.error("move away", &name, errno))?;
        self.verified().remove(key);
        (self.warnings)(&StoreWarning::Damaged { key: *key, why });
        Ok(())
    }

    /// Moves an unused layer to another folder. Returns whether it was moved.
    pub(super) fn move_unused(&self, key: &LayerKey, into: &StoreFolder) -> Result<bool, LayerStoreError> {
        let name = key.to_string();
        let Some(lock) = FileLock::try_acquire(&self.locks, &name, LockMode::Exclusive)? else {
            return Ok(false);
        };
        let _change = FileLock::acquire(&self.locks, CHANGE_LOCK, LockMode::Exclusive)?;
        let taken = match rustix::fs::renameat(&self.layers, &name, into, &name) {
            Ok(()) => true,
            Err(Errno::NOENT) => false,
            Err(errno) => return Err(self.layers.error("remove", &name, errno).into()),
        };
        self.verified().remove(key);
        lock.unlink_file()?;
        Ok(taken)
    }

    /// Returns the identity of the layer under a key.
    pub(super) fn identity(&self, key: &LayerKey) -> Result<Option<Identity>, LayerStoreError> {
        let look = |name: &str| {
            let stat = self.layers.stat(&format!("{key}/{name}"))?;
            let of = |stat: rustix::fs::Stat| (stat.st_ino, stat.st_ctime, i128::from(stat.st_ctime_nsec));
            Ok::<_, LayerStoreError>(stat.map_or((0, 0, 0), of))
        };
        if self.layers.stat(&key.to_string())?.is_none() {
            return Ok(None);
        }
        Ok(Some(Identity([look(MANIFEST)?, look(FILES)?])))
    }

    fn verified(&self) -> MutexGuard<'_, HashMap<LayerKey, VerifiedLayer>> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the folder with a layer's files.
pub(super) fn open_files(layer: &StoreFolder) -> Result<OwnedFd, LayerStoreError> {
    let files = layer.open(FILES)?;
    files.as_fd().try_clone_to_owned().map_err(|error| LayerStoreError::from_io("open", files.path(), &error))
}
