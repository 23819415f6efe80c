//! Layers on disk. skeleton
#![allow(dead_code, unused_variables, clippy::todo, reason = "signatures first")]

mod digest;
mod error;
mod flights;
mod manifest;

use std::future::Future;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use digest::Digest;
pub use error::ShelfError;
pub use flights::Flights;
pub use manifest::{Key, Manifest, Package, Recipe, Scope};

/// How much is kept, and how much one layer may be.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Of all layers together; the least recently used go first.
    pub bytes: u64,
    /// How many layers.
    pub layers: u64,
    /// Of one layer.
    pub layer_bytes: u64,
}

/// Something that an administrator may want to know, and that stops nothing.
#[derive(Debug, Clone)]
pub enum Notice {
    /// A layer was found damaged and moved away.
    Broken {
        /// Which.
        key: Key,
        /// What was not as it was.
        why: String,
    },
    /// The shared cache does not answer; said once.
    Remote {
        /// What it said.
        why: String,
    },
}

/// Who is told.
pub type Tell = Arc<dyn Fn(&Notice) + Send + Sync>;

/// The layers of one folder.
#[derive(Clone)]
pub struct Shelf {}

/// A layer that cannot be removed while this lives.
#[derive(Debug, Clone)]
pub struct Held {}

impl Held {
    /// The folder to mount, read-only.
    pub fn files(&self) -> &Path {
        todo!()
    }
    /// What it is made of.
    pub fn manifest(&self) -> &Manifest {
        todo!()
    }
    /// Its name.
    pub fn key(&self) -> Key {
        todo!()
    }
}

/// A private folder for what is to become a layer; gone with this.
#[derive(Debug)]
pub struct Stage {}

impl Stage {
    /// Where the files go.
    pub fn files(&self) -> &Path {
        todo!()
    }
}

/// The right to do a thing that one process does at a time.
#[derive(Debug)]
pub struct Turn {}

/// What a question came to before.
#[derive(Debug, Clone)]
pub struct Resolution<T> {
    /// The answer.
    pub value: T,
    /// Younger than asked for. What is not may still do where nobody can be asked.
    pub fresh: bool,
}

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
    /// From the shared cache.
    Remote,
    /// It was built.
    Built,
}

/// A layer in a list.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Its name.
    pub key: Key,
    /// What it is made of.
    pub manifest: Manifest,
    /// When it was used last, to the hour or so.
    pub last_use: SystemTime,
}

/// Which layers go.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prune {
    /// Until so many bytes are left.
    pub to_bytes: Option<u64>,
    /// Until so many layers are left.
    pub to_layers: Option<u64>,
    /// Those that nobody used for so long.
    pub unused_for: Option<Duration>,
}

/// What went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// How many layers.
    pub layers: u64,
    /// How much they were.
    pub bytes: u64,
}

impl Shelf {
    /// Opens the folder, makes it where it is missing, and removes what killed processes left half done.
    pub fn open(folder: &Path, bounds: Bounds, tell: Tell) -> Result<Self, ShelfError> {
        todo!()
    }

    /// The layer of this name, verified at its first use in this process. One that is damaged is moved away.
    pub async fn find(&self, key: &Key) -> Result<Option<Held>, ShelfError> {
        todo!()
    }

    /// The layer: found here, else fetched from the shared cache, else built. Whoever asks meanwhile, in this process
    /// or another, waits and gets the same.
    pub async fn obtain<E: Clone + From<ShelfError>>(
        &self,
        flights: &Flights<Result<Obtained, E>>,
        key: &Key,
        build: impl Future<Output = Result<Held, E>>,
    ) -> Result<Obtained, E> {
        todo!()
    }

    /// A private folder to install into.
    pub fn stage(&self) -> Result<Stage, ShelfError> {
        todo!()
    }

    /// Puts what is in the stage on the shelf. Whatever does not belong into a layer is refused.
    pub async fn publish(&self, stage: Stage, recipe: Recipe) -> Result<Held, ShelfError> {
        todo!()
    }

    /// Waits until no other process does this.
    pub async fn turn(&self, what: &Digest) -> Result<Turn, ShelfError> {
        todo!()
    }

    /// What a question came to before.
    pub async fn resolution<T: DeserializeOwned>(
        &self,
        question: &Digest,
        ttl: Duration,
    ) -> Option<Resolution<T>> {
        todo!()
    }

    /// Remembers what a question came to.
    pub async fn remember<T: Serialize>(&self, question: &Digest, value: &T) -> Result<(), ShelfError> {
        todo!()
    }

    /// Every layer, the least recently used first.
    pub fn list(&self) -> Result<Vec<Listed>, ShelfError> {
        todo!()
    }

    /// Removes layers that nobody uses.
    pub fn prune(&self, which: Prune) -> Result<Pruned, ShelfError> {
        todo!()
    }

    /// Reads every byte of a layer; a damaged one is moved away.
    pub fn verify(&self, key: &Key) -> Result<Manifest, ShelfError> {
        todo!()
    }

    /// Writes a layer as a tar.
    pub fn export(&self, key: &Key, to: impl Write) -> Result<Manifest, ShelfError> {
        todo!()
    }

    /// Puts an exported layer on the shelf, if it is what it says.
    pub fn import(&self, from: impl Read) -> Result<Held, ShelfError> {
        todo!()
    }
}
