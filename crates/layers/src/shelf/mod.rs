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
mod digest;
mod disk;
mod error;
mod flights;
mod folder;
mod keep;
mod lock;
mod manifest;
mod nook;
mod remote;
mod remove;
mod resolutions;
mod tree;

use std::future::Future;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use disk::Disk;
use remote::Remote;

pub use address::{Address, SharedCache};
pub use archive::set_time;
pub use caches::Caches;
pub use digest::Digest;
pub use disk::Held;
pub use error::ShelfError;
pub use flights::Flights;
pub use folder::{Folder, NEW_FILE, OPEN_FOLDER, names, random_name};
pub use keep::{Listed, Prune, Pruned, Weight};
pub use lock::{How, Lock};
pub use manifest::{Key, Manifest, Package, Recipe, Scope};
pub use nook::{Nook, Stage, sweep};
pub use remove::{remove, remove_at};
pub use resolutions::Resolution;

/// Size limits of the store and of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of all layers together.
    pub bytes: u64,
    /// Number of layers.
    pub layers: u64,
    /// Bytes of one layer.
    pub layer_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { bytes: 10 << 30, layers: 10_000, layer_bytes: 4 << 30 }
    }
}

/// A problem that stops nothing, but that an administrator should know about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A damaged layer was quarantined.
    Broken {
        /// The layer's key.
        key: Key,
        /// The damage.
        why: String,
    },
    /// The shared cache fails; reported once until it works again.
    Cache {
        /// The error.
        why: String,
    },
    /// A layer in the shared cache is invalid.
    Refused {
        /// The layer's key.
        key: Key,
        /// The reason.
        why: String,
    },
    /// Layers beyond the bounds cannot be removed.
    Full {
        /// The error.
        why: String,
    },
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Broken { key, why } => {
                write!(f, "layer {key} was damaged ({why}) and moved away; it will be rebuilt")
            }
            Self::Cache { why } => write!(f, "the shared cache of layers failed and is not used: {why}"),
            Self::Refused { key, why } => {
                write!(f, "layer {key} of the shared cache is invalid ({why}); it is built here")
            }
            Self::Full { why } => write!(f, "unused layers cannot be removed: {why}"),
        }
    }
}

/// A callback that receives warnings.
pub type Tell = Arc<dyn Fn(&Notice) + Send + Sync>;

/// A layer and its origin.
#[derive(Debug, Clone)]
pub struct Obtained {
    /// A lease on the layer.
    pub held: Held,
    /// Its origin.
    pub origin: Origin,
}

/// The origin of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Found in this store.
    Shelf,
    /// Fetched from the shared cache.
    Fetched,
    /// Built now.
    Built,
}

/// An exclusive right to one piece of work, across processes; released on drop.
#[derive(Debug)]
pub struct Turn(Lock);

impl Drop for Turn {
    fn drop(&mut self) {
        // If this fails, the unlocked file stays, which is harmless.
        let _ = self.0.remove();
    }
}

/// A store of layers in one folder. Clones share it.
#[derive(Debug, Clone)]
pub struct Shelf {
    disk: Arc<Disk>,
    remote: Option<Arc<Remote>>,
    finding: Arc<Flights<Result<Option<Held>, ShelfError>>>,
}

impl Shelf {
    /// Opens the store, creates its folder if it is missing, and removes unfinished work of killed processes.
    pub fn open(folder: &Path, bounds: Bounds, tell: Tell) -> Result<Self, ShelfError> {
        let disk = Arc::new(Disk::open(folder, bounds, tell)?);
        Ok(Self { disk, remote: None, finding: Arc::default() })
    }

    /// Adds a cache that is shared with other machines.
    #[must_use]
    pub fn sharing(self, cache: SharedCache) -> Self {
        Self { remote: Some(Arc::new(Remote::new(cache))), ..self }
    }

    /// Waits until pending uploads to the shared cache are done, up to its timeout.
    pub async fn settle(&self) {
        if let Some(remote) = &self.remote {
            remote.settle().await;
        }
    }

    /// Finds a layer, verified at its first use in this process. Quarantines a damaged one.
    pub async fn find(&self, key: &Key) -> Result<Option<Held>, ShelfError> {
        if let Some(held) = self.disk.glance(key)? {
            return Ok(Some(held));
        }
        let (disk, wanted) = (Arc::clone(&self.disk), *key);
        self.finding.once(key.digest(), blocking(move || disk.find(&wanted))).await
    }

    /// Finds a layer, fetches it from the shared cache, or builds it. Concurrent callers, in any process,
    /// share one result.
    pub async fn obtain<E: Clone + From<ShelfError>>(
        &self,
        flights: &Flights<Result<Obtained, E>>,
        key: &Key,
        build: impl Future<Output = Result<Held, E>>,
    ) -> Result<Obtained, E> {
        let found = |held| Obtained { held, origin: Origin::Shelf };
        if let Some(held) = self.find(key).await? {
            return Ok(found(held));
        }
        let work = async {
            let _turn = self.turn(key.digest()).await?;
            if let Some(held) = self.find(key).await? {
                return Ok(found(held));
            }
            let Some(remote) = &self.remote else {
                return Ok(Obtained { held: build.await?, origin: Origin::Built });
            };
            if let Some(held) = remote.fetch(&self.disk, key).await {
                return Ok(Obtained { held, origin: Origin::Fetched });
            }
            let held = build.await?;
            remote.offer(&self.disk, &held);
            Ok(Obtained { held, origin: Origin::Built })
        };
        flights.once(key.digest(), work).await
    }

    /// Creates a private folder to install into.
    pub fn stage(&self) -> Result<Stage, ShelfError> {
        Stage::new(&self.disk.staging)
    }

    /// Publishes a stage as a layer. Refuses anything that is not allowed in a layer. If the store exceeds
    /// its bounds, the least recently used layers are removed.
    pub async fn publish(&self, stage: Stage, recipe: Recipe) -> Result<Held, ShelfError> {
        let disk = Arc::clone(&self.disk);
        blocking(move || {
            let held = disk.publish(&stage, recipe, None)?;
            disk.keep_to_bounds();
            Ok(held)
        })
        .await
    }

    /// Waits until no other process does this work.
    pub async fn turn(&self, what: &Digest) -> Result<Turn, ShelfError> {
        Lock::wait(&self.disk.turns, &what.to_string(), How::Alone).await.map(Turn)
    }

    /// Returns a cached resolution.
    pub async fn resolution<T: DeserializeOwned>(
        &self,
        question: &Digest,
        ttl: Duration,
    ) -> Option<Resolution<T>> {
        let (disk, asked) = (Arc::clone(&self.disk), *question);
        let text = blocking(move || disk.recall(&asked)).await.ok()??;
        resolutions::read(question, ttl, &text)
    }

    /// Caches a resolution.
    pub async fn remember<T: Serialize>(&self, question: &Digest, answer: &T) -> Result<(), ShelfError> {
        let (disk, question, text) =
            (Arc::clone(&self.disk), *question, resolutions::written(question, answer)?);
        blocking(move || disk.remember(&question, &text)).await
    }

    /// Lists all layers, least recently used first.
    pub fn list(&self) -> Result<Vec<Listed>, ShelfError> {
        self.disk.list()
    }

    /// Returns the keys of all layers, in no particular order.
    pub fn keys(&self) -> Result<Vec<Key>, ShelfError> {
        self.disk.keys()
    }

    /// Returns information about one layer.
    pub fn show(&self, key: &Key) -> Result<Listed, ShelfError> {
        self.disk.listed(key)?.ok_or(ShelfError::NotFound(*key))
    }

    /// Returns the number of layers and their size.
    pub async fn weigh(&self) -> Result<Weight, ShelfError> {
        let disk = Arc::clone(&self.disk);
        blocking(move || disk.weigh()).await
    }

    /// Removes unused layers.
    pub fn prune(&self, which: Prune) -> Result<Pruned, ShelfError> {
        self.disk.prune(which)
    }

    /// Reads every byte of a layer. Quarantines a damaged one.
    pub fn verify(&self, key: &Key) -> Result<Manifest, ShelfError> {
        self.disk.verify(key)
    }

    /// Writes a layer as a tar archive.
    pub fn export(&self, key: &Key, to: impl Write) -> Result<Manifest, ShelfError> {
        self.disk.verify(key)?;
        let held = self.disk.find(key)?.ok_or(ShelfError::NotFound(*key))?;
        self.disk.export(&held, to)?;
        Ok(held.manifest().clone())
    }

    /// Imports an exported layer after verifying it.
    pub fn import(&self, from: impl Read + Seek) -> Result<Held, ShelfError> {
        let held = self.disk.import(from, None)?;
        self.disk.keep_to_bounds();
        Ok(held)
    }
}

/// Runs blocking work on a separate thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ShelfError> + Send + 'static,
) -> Result<T, ShelfError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ShelfError::System(error.to_string()))?
}
