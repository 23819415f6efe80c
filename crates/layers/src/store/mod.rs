//! The layer store: layers on disk, content-addressed, read-only, verified, and shared by processes.
//!
//! ```text
//! find(key) ─▶ LayerLease                    verified at the first use after a start
//! obtain(key, build) ─▶ find, else one caller fetches it from the shared cache, else builds it:
//!     stage() ─▶ StagedLayer ─▶ files are installed ─▶ publish(stage, recipe) ─▶ LayerLease
//! ```
//!
//! - A layer is complete or absent: it appears and disappears by rename. Leftovers of killed processes are
//!   swept.
//! - A stage contains untrusted files. It is walked by descriptor, and anything that is not allowed in a
//!   layer is refused.
//! - A damaged layer is quarantined, reported and rebuilt; it is never used.
//! - No process removes a layer that is in use.
//! - Finding a layer never lists a folder, so its cost does not grow with the number of layers.
//!
//! Hashes detect damage and mix-ups, not forgery: anyone who can write this folder is trusted.

mod address;
mod archive;
mod caches;
mod disk;
mod error;
mod inventory;
mod manifest;
mod remote;
mod resolutions;
mod single_flight;
mod staging;
mod tree;

use std::future::Future;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belljar_beneath::{ContentDigest, FileLock, LockMode, blocking};
use serde::Serialize;
use serde::de::DeserializeOwned;

use disk::DiskStore;
use remote::RemoteCache;

pub use address::{CacheAddress, SharedCache};
pub use caches::InstallerCaches;
pub use disk::LayerLease;
pub use error::LayerStoreError;
pub use inventory::{LayerInfo, Prune, PruneResult, StoreUsage};
pub use manifest::{ExactPackage, LayerKey, LayerRecipe, LayerScope, Manifest};
pub use resolutions::CachedResolution;
pub use single_flight::SingleFlight;
pub use staging::StagedLayer;

/// Size limits of the store and of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerBounds {
    /// Bytes of all layers together.
    pub bytes: u64,
    /// Number of layers.
    pub layers: u64,
    /// Bytes of one layer.
    pub layer_bytes: u64,
}

impl Default for LayerBounds {
    fn default() -> Self {
        Self { bytes: 10 << 30, layers: 10_000, layer_bytes: 4 << 30 }
    }
}

/// A problem that stops nothing, but that an administrator should know about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreWarning {
    /// A damaged layer was quarantined.
    Damaged {
        /// The layer's key.
        key: LayerKey,
        /// The damage.
        why: String,
    },
    /// The shared cache fails; reported once until it works again.
    SharedCacheFailed {
        /// The error.
        why: String,
    },
    /// A layer in the shared cache is invalid.
    SharedLayerInvalid {
        /// The layer's key.
        key: LayerKey,
        /// The reason.
        why: String,
    },
    /// Layers beyond the bounds cannot be removed.
    PruneFailed {
        /// The error.
        why: String,
    },
}

impl std::fmt::Display for StoreWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Damaged { key, why } => {
                write!(f, "layer {key} was damaged ({why}) and moved away; it will be rebuilt")
            }
            Self::SharedCacheFailed { why } => {
                write!(f, "the shared cache of layers failed and is not used: {why}")
            }
            Self::SharedLayerInvalid { key, why } => {
                write!(f, "layer {key} of the shared cache is invalid ({why}); it is built here")
            }
            Self::PruneFailed { why } => write!(f, "unused layers cannot be removed: {why}"),
        }
    }
}

/// A callback that receives warnings.
pub type WarningSink = Arc<dyn Fn(&StoreWarning) + Send + Sync>;

/// A layer and its origin.
#[derive(Debug, Clone)]
pub struct ObtainedLayer {
    /// A lease on the layer.
    pub layer: LayerLease,
    /// Its origin.
    pub origin: LayerOrigin,
}

/// The origin of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerOrigin {
    /// Found in this store.
    Local,
    /// Fetched from the shared cache.
    Fetched,
    /// Built now.
    Built,
}

/// An exclusive right to one piece of work, across processes; released on drop.
#[derive(Debug)]
pub struct WorkLock(FileLock);

impl Drop for WorkLock {
    fn drop(&mut self) {
        // If this fails, the unlocked file stays, which is harmless.
        let _ = self.0.unlink_file();
    }
}

/// A store of layers in one folder. Clones share it.
#[derive(Debug, Clone)]
pub struct LayerStore {
    disk: Arc<DiskStore>,
    remote: Option<Arc<RemoteCache>>,
    finding: Arc<SingleFlight<Result<Option<LayerLease>, LayerStoreError>>>,
}

impl LayerStore {
    /// Opens the store, creates its folder if it is missing, and removes unfinished work of killed processes.
    pub fn open(folder: &Path, bounds: LayerBounds, tell: WarningSink) -> Result<Self, LayerStoreError> {
        let disk = Arc::new(DiskStore::open(folder, bounds, tell)?);
        Ok(Self { disk, remote: None, finding: Arc::default() })
    }

    /// Adds a cache that is shared with other machines.
    #[must_use]
    pub fn with_shared_cache(self, cache: SharedCache) -> Self {
        Self { remote: Some(Arc::new(RemoteCache::new(cache))), ..self }
    }

    /// Waits until pending uploads to the shared cache are done, up to its timeout.
    pub async fn wait_for_uploads(&self) {
        if let Some(remote) = &self.remote {
            remote.wait_for_uploads().await;
        }
    }

    /// Finds a layer, verified at its first use in this process. Quarantines a damaged one.
    pub async fn find(&self, key: &LayerKey) -> Result<Option<LayerLease>, LayerStoreError> {
        if let Some(held) = self.disk.find_in_use(key)? {
            return Ok(Some(held));
        }
        let (disk, wanted) = (Arc::clone(&self.disk), *key);
        self.finding.run(key.digest(), blocking(move || disk.find(&wanted))).await
    }

    /// Finds a layer, fetches it from the shared cache, or builds it. Concurrent callers, in any process,
    /// share one result.
    pub async fn obtain<E: Clone + From<LayerStoreError>>(
        &self,
        flights: &SingleFlight<Result<ObtainedLayer, E>>,
        key: &LayerKey,
        build: impl Future<Output = Result<LayerLease, E>>,
    ) -> Result<ObtainedLayer, E> {
        let found = |held| ObtainedLayer { layer: held, origin: LayerOrigin::Local };
        if let Some(held) = self.find(key).await? {
            return Ok(found(held));
        }
        let work = async {
            let _turn = self.lock_work(key.digest()).await?;
            if let Some(held) = self.find(key).await? {
                return Ok(found(held));
            }
            let Some(remote) = &self.remote else {
                return Ok(ObtainedLayer { layer: build.await?, origin: LayerOrigin::Built });
            };
            if let Some(held) = remote.fetch(&self.disk, key).await {
                return Ok(ObtainedLayer { layer: held, origin: LayerOrigin::Fetched });
            }
            let held = build.await?;
            remote.upload_in_background(&self.disk, &held);
            Ok(ObtainedLayer { layer: held, origin: LayerOrigin::Built })
        };
        flights.run(key.digest(), work).await
    }

    /// Creates a private folder to install into.
    pub fn stage(&self) -> Result<StagedLayer, LayerStoreError> {
        StagedLayer::new(&self.disk.staging)
    }

    /// Publishes a stage as a layer. Refuses anything that is not allowed in a layer. If the store exceeds
    /// its bounds, the least recently used layers are removed.
    pub async fn publish(
        &self,
        stage: StagedLayer,
        recipe: LayerRecipe,
    ) -> Result<LayerLease, LayerStoreError> {
        let disk = Arc::clone(&self.disk);
        blocking(move || {
            let held = disk.publish(&stage, recipe, None)?;
            disk.enforce_bounds();
            Ok(held)
        })
        .await
    }

    /// Waits until no other process does this work.
    pub async fn lock_work(&self, what: &ContentDigest) -> Result<WorkLock, LayerStoreError> {
        let (locks, name) = (&self.disk.work_locks, what.to_string());
        Ok(WorkLock(FileLock::acquire_async(locks, &name, LockMode::Exclusive).await?))
    }

    /// Returns a cached resolution.
    pub async fn resolution<T: DeserializeOwned>(
        &self,
        question: &ContentDigest,
        ttl: Duration,
    ) -> Option<CachedResolution<T>> {
        let (disk, asked) = (Arc::clone(&self.disk), *question);
        let text = blocking(move || disk.read_resolution(&asked)).await.ok()??;
        resolutions::parse_resolution(question, ttl, &text)
    }

    /// Caches a resolution.
    pub async fn store_resolution<T: Serialize>(
        &self,
        question: &ContentDigest,
        answer: &T,
    ) -> Result<(), LayerStoreError> {
        let (disk, question, text) =
            (Arc::clone(&self.disk), *question, resolutions::serialize_resolution(question, answer)?);
        blocking(move || disk.write_resolution(&question, &text)).await
    }

    /// Lists all layers, least recently used first.
    pub fn list(&self) -> Result<Vec<LayerInfo>, LayerStoreError> {
        self.disk.list()
    }

    /// Returns the keys of all layers, in no particular order.
    pub fn keys(&self) -> Result<Vec<LayerKey>, LayerStoreError> {
        self.disk.keys()
    }

    /// Returns information about one layer.
    pub fn info(&self, key: &LayerKey) -> Result<LayerInfo, LayerStoreError> {
        self.disk.layer_info(key)?.ok_or(LayerStoreError::NotFound(*key))
    }

    /// Returns the number of layers and their size.
    pub async fn usage(&self) -> Result<StoreUsage, LayerStoreError> {
        let disk = Arc::clone(&self.disk);
        blocking(move || disk.usage()).await
    }

    /// Removes unused layers.
    pub fn prune(&self, which: Prune) -> Result<PruneResult, LayerStoreError> {
        self.disk.prune(which)
    }

    /// Removes the layers of a scope, except those in use.
    pub async fn remove_scope(&self, scope: LayerScope) -> Result<(), LayerStoreError> {
        let disk = Arc::clone(&self.disk);
        blocking(move || disk.remove_scope(&scope)).await
    }

    /// Reads every byte of a layer. Quarantines a damaged one.
    pub fn verify(&self, key: &LayerKey) -> Result<Manifest, LayerStoreError> {
        self.disk.verify(key)
    }

    /// Writes a layer as a tar archive.
    pub fn export(&self, key: &LayerKey, to: impl Write) -> Result<Manifest, LayerStoreError> {
        self.disk.verify(key)?;
        let held = self.disk.find(key)?.ok_or(LayerStoreError::NotFound(*key))?;
        self.disk.export(&held, to)?;
        Ok(held.manifest().clone())
    }

    /// Imports an exported layer after verifying it.
    pub fn import(&self, from: impl Read + Seek) -> Result<LayerLease, LayerStoreError> {
        let held = self.disk.import(from, None)?;
        self.disk.enforce_bounds();
        Ok(held)
    }
}
