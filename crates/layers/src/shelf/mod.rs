//! Layers on disk: content-addressed, read-only, verified, and shared by processes.
//!
//! ```text
//! find(key) ─▶ Held                                  verified at the first use after a start
//! obtain(key, build) ─▶ find, else one of all who ask has it from the cache that machines share, or builds it:
//!     stage() ─▶ Stage ─▶ files are installed ─▶ publish(stage, recipe) ─▶ Held
//! ```
//!
//! - A layer is there as a whole or not at all: it comes and goes by rename. What a killed process leaves is swept.
//! - What is in a stage comes from strangers. It is walked by descriptor, and what has no place in a layer is refused.
//! - A damaged layer is moved away, told, and built anew; it is never used.
//! - What is in use is never removed, by any process.
//! - Finding a layer lists no folder, however many there are.
//!
//! The hashes find damage and mix-ups. They do not say who made a layer: whoever can write this folder is trusted.

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

/// How much is kept, and how much one layer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Of all layers together.
    pub bytes: u64,
    /// How many layers.
    pub layers: u64,
    /// Of one layer.
    pub layer_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { bytes: 10 << 30, layers: 10_000, layer_bytes: 4 << 30 }
    }
}

/// Something that stops nothing, and that an administrator wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A layer was found damaged and moved away.
    Broken {
        /// Which.
        key: Key,
        /// What was not as it was.
        why: String,
    },
    /// The shared cache fails; said once until it works again.
    Cache {
        /// What it said.
        why: String,
    },
    /// A layer in the shared cache is not what it should be.
    Refused {
        /// Which.
        key: Key,
        /// What is wrong with it.
        why: String,
    },
    /// Layers that should go cannot be removed.
    Full {
        /// Why not.
        why: String,
    },
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Broken { key, why } => {
                write!(f, "layer {key} was damaged ({why}) and moved away; it will be made anew")
            }
            Self::Cache { why } => write!(f, "the shared cache of layers fails, and is done without: {why}"),
            Self::Refused { key, why } => {
                write!(f, "layer {key} of the shared cache is refused ({why}); it is built here")
            }
            Self::Full { why } => write!(f, "layers that nobody uses cannot be removed: {why}"),
        }
    }
}

/// Who is told.
pub type Tell = Arc<dyn Fn(&Notice) + Send + Sync>;

/// A layer, and where it came from.
#[derive(Debug, Clone)]
pub struct Obtained {
    /// The layer.
    pub held: Held,
    /// Where it came from.
    pub origin: Origin,
}

/// Where a layer came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was there.
    Shelf,
    /// From the cache that machines share.
    Fetched,
    /// It was built.
    Built,
}

/// The right to do a thing that one process does at a time; ends with this.
#[derive(Debug)]
pub struct Turn(Lock);

impl Drop for Turn {
    fn drop(&mut self) {
        // A name that stays is only a name.
        let _ = self.0.remove();
    }
}

/// The layers of one folder. Clones are the same shelf.
#[derive(Debug, Clone)]
pub struct Shelf {
    disk: Arc<Disk>,
    remote: Option<Arc<Remote>>,
    finding: Arc<Flights<Result<Option<Held>, ShelfError>>>,
}

impl Shelf {
    /// Opens the folder, makes it where it is missing, and removes what killed processes left half done.
    pub fn open(folder: &Path, bounds: Bounds, tell: Tell) -> Result<Self, ShelfError> {
        let disk = Arc::new(Disk::open(folder, bounds, tell)?);
        Ok(Self { disk, remote: None, finding: Arc::default() })
    }

    /// The same, with a cache that it shares with other machines.
    #[must_use]
    pub fn sharing(self, cache: SharedCache) -> Self {
        Self { remote: Some(Arc::new(Remote::new(cache))), ..self }
    }

    /// Waits until the shared cache has what it is to have, or no longer takes it.
    pub async fn settle(&self) {
        if let Some(remote) = &self.remote {
            remote.settle().await;
        }
    }

    /// The layer of this name, verified at its first use in this process. One that is damaged is moved away.
    pub async fn find(&self, key: &Key) -> Result<Option<Held>, ShelfError> {
        if let Some(held) = self.disk.glance(key)? {
            return Ok(Some(held));
        }
        let (disk, wanted) = (Arc::clone(&self.disk), *key);
        self.finding.once(key.digest(), blocking(move || disk.find(&wanted))).await
    }

    /// The layer: found here, else fetched from the shared cache, else built. Whoever asks meanwhile, in this process
    /// or in another, waits and gets the same.
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

    /// A private folder to install into.
    pub fn stage(&self) -> Result<Stage, ShelfError> {
        Stage::new(&self.disk.staging)
    }

    /// Puts what is in the stage on the shelf. Whatever does not belong into a layer is refused. Where that is too much
    /// for the shelf, what was used least recently goes.
    pub async fn publish(&self, stage: Stage, recipe: Recipe) -> Result<Held, ShelfError> {
        let disk = Arc::clone(&self.disk);
        blocking(move || {
            let held = disk.publish(&stage, recipe, None)?;
            disk.keep_to_bounds();
            Ok(held)
        })
        .await
    }

    /// Waits until no other process does this.
    pub async fn turn(&self, what: &Digest) -> Result<Turn, ShelfError> {
        Lock::wait(&self.disk.turns, &what.to_string(), How::Alone).await.map(Turn)
    }

    /// What a question came to before.
    pub async fn resolution<T: DeserializeOwned>(
        &self,
        question: &Digest,
        ttl: Duration,
    ) -> Option<Resolution<T>> {
        let (disk, asked) = (Arc::clone(&self.disk), *question);
        let text = blocking(move || disk.recall(&asked)).await.ok()??;
        resolutions::read(question, ttl, &text)
    }

    /// Remembers what a question came to.
    pub async fn remember<T: Serialize>(&self, question: &Digest, answer: &T) -> Result<(), ShelfError> {
        let (disk, question, text) =
            (Arc::clone(&self.disk), *question, resolutions::written(question, answer)?);
        blocking(move || disk.remember(&question, &text)).await
    }

    /// Every layer, the least recently used first.
    pub fn list(&self) -> Result<Vec<Listed>, ShelfError> {
        self.disk.list()
    }

    /// The names of all layers, in no order.
    pub fn keys(&self) -> Result<Vec<Key>, ShelfError> {
        self.disk.keys()
    }

    /// One layer.
    pub fn show(&self, key: &Key) -> Result<Listed, ShelfError> {
        self.disk.listed(key)?.ok_or(ShelfError::NotFound(*key))
    }

    /// How many layers there are, and how much they are.
    pub async fn weigh(&self) -> Result<Weight, ShelfError> {
        let disk = Arc::clone(&self.disk);
        blocking(move || disk.weigh()).await
    }

    /// Removes layers that nobody uses.
    pub fn prune(&self, which: Prune) -> Result<Pruned, ShelfError> {
        self.disk.prune(which)
    }

    /// Reads every byte of a layer; one that is damaged is moved away.
    pub fn verify(&self, key: &Key) -> Result<Manifest, ShelfError> {
        self.disk.verify(key)
    }

    /// Writes a layer as a tar.
    pub fn export(&self, key: &Key, to: impl Write) -> Result<Manifest, ShelfError> {
        self.disk.verify(key)?;
        let held = self.disk.find(key)?.ok_or(ShelfError::NotFound(*key))?;
        self.disk.export(&held, to)?;
        Ok(held.manifest().clone())
    }

    /// Puts an exported layer on the shelf, if it is what it says.
    pub fn import(&self, from: impl Read + Seek) -> Result<Held, ShelfError> {
        let held = self.disk.import(from, None)?;
        self.disk.keep_to_bounds();
        Ok(held)
    }
}

/// Does what may take long away from where tasks are run.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ShelfError> + Send + 'static,
) -> Result<T, ShelfError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ShelfError::System(error.to_string()))?
}
