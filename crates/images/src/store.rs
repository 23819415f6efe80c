//! Stores images on disk.
//!
//! ```text
//! images/HASH.json      the record of a name; appears and disappears by rename
//! roots/CHAIN-RANDOM/   root/: unpacked layers, never changed; size.json
//! locks/ROOT            shared by users of a root, exclusive for its removal
//! blobs/DIGEST          a layer being downloaded; received bytes are not fetched again
//! staging/              unfinished work; swept if its lock is free
//! ```
//!
//! One process at a time adds or removes images (`ImageStoreLock`). A root that is unpacked again gets
//! another name, so that it is never mistaken for the previous one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use belljar_engine::images::{Images, ImagesError, Variables};
use belljar_engine::plan::Stored;
use belljar_layers::shelf::{
    Digest, Folder, How, Lock, NEW_FILE, Nook, OPEN_FOLDER, random_name, remove, sweep,
};
use rustix::fs::Mode;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::clone::{FOLDER, clone};
use crate::documents::{Settings, chain, digest_of};
use crate::error::ImageError;
use crate::name::Name;
use crate::unpack::{Room, unpack};
use crate::{layer, seal};

const MAX_RECORD: u64 = 1 << 20;
const ROOT: &str = "root";
const SIZE: &str = "size.json";
const TURN: &str = "turn";
/// The resolver of sandboxes with an egress gate; sandboxes without a network cannot resolve names.
const NAMES: &[u8] = b"nameserver 127.0.0.1\noptions timeout:5 attempts:2\n";

/// Limits for one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Unpacked size in bytes.
    pub bytes: u64,
    /// Number of files, folders and links.
    pub entries: u64,
    /// Download size in bytes.
    pub fetched: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { bytes: 32 << 30, entries: 2_000_000, fetched: 16 << 30 }
    }
}

/// The record of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The full name.
    pub name: String,
    /// Digest of the manifest, or else of the configuration or the only layer. `None` for a sealed image.
    pub digest: Option<Digest>,
    /// Folder name of the root.
    root: String,
    /// Chain IDs of the layers.
    chain: Vec<Digest>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// The image's `PATH`.
    pub path: Option<String>,
    /// Unpacked size in bytes.
    pub bytes: u64,
    /// When it was added, in seconds since 1970.
    pub created: u64,
}

/// The size of a root.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Size {
    bytes: u64,
    entries: u64,
}

/// A lease on an image: the image is not removed while this exists.
#[derive(Debug)]
pub struct Held {
    /// The image's record.
    pub record: Record,
    /// The root folder.
    pub folder: PathBuf,
    _lock: Lock,
}

/// The result of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// Number of removed roots.
    pub roots: u64,
    /// Number of roots in use; the next removal tries again.
    pub used: u64,
}

/// A store of images in one folder. Clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    disk: Arc<Disk>,
}

#[derive(Debug)]
struct Disk {
    top: Arc<Folder>,
    images: Folder,
    roots: Folder,
    locks: Arc<Folder>,
    blobs: Folder,
    staging: Arc<Folder>,
    bounds: Bounds,
}

/// The exclusive right to add and remove images.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "held")] Lock);

/// A layer archive to unpack.
pub(crate) struct Packed {
    pub(crate) from: Box<dyn Read + Send>,
    /// Size of the archive in bytes.
    pub(crate) size: u64,
}

impl Store {
    /// Opens the store, creates its folder if it is missing, and removes unfinished work of killed processes.
    pub fn open(folder: &Path, bounds: Bounds) -> Result<Self, ImageError> {
        let top = Arc::new(Folder::top(folder)?);
        let staging = Arc::new(top.child("staging")?);
        sweep(&staging)?;
        let disk = Disk {
            images: top.child("images")?,
            roots: top.child("roots")?,
            locks: Arc::new(top.child("locks")?),
            blobs: top.child("blobs")?,
            staging,
            top,
            bounds,
        };
        Ok(Self { disk: Arc::new(disk) })
    }

    /// Waits until no other process adds or removes images.
    pub(crate) async fn turn(&self) -> Result<Turn, ImageError> {
        Ok(Turn(Lock::wait(&self.disk.top, TURN, How::Alone).await?))
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.disk.bounds
    }

    pub(crate) fn blobs(&self) -> &Path {
        self.disk.blobs.path()
    }

    /// Finds an image by name.
    pub fn find(&self, name: &Name) -> Result<Option<Held>, ImageError> {
        // The image may be replaced between reading the record and locking the root, but not repeatedly.
        for _ in 0..8 {
            let Some(record) = self.disk.record(&file_of(name))? else { return Ok(None) };
            let lock = Lock::take(&self.disk.locks, &record.root, How::Shared)?;
            if self.disk.roots.stat(&record.root)?.is_some() {
                let folder = self.disk.roots.path().join(&record.root).join(ROOT);
                return Ok(Some(Held { record, folder, _lock: lock }));
            }
        }
        Ok(None)
    }

    /// Lists all images by name.
    pub fn list(&self) -> Result<Vec<Record>, ImageError> {
        self.disk.records()
    }

    /// Removes a name, and all roots that are no longer needed.
    pub async fn remove(&self, name: &Name) -> Result<Removed, ImageError> {
        let turn = self.turn().await?;
        let (disk, file, shown) = (Arc::clone(&self.disk), file_of(name), name.to_string());
        blocking(move || {
            let _turn = turn;
            disk.record(&file)?.ok_or(ImageError::NotFound(shown))?;
            disk.images.unlink(&file)?;
            disk.collect()
        })
        .await
    }

    /// Returns how many of the lowest layers are already unpacked.
    pub(crate) fn known(&self, settings: &Settings) -> Result<usize, ImageError> {
        let chain = chain(&settings.layers);
        let roots = self.disk.chains()?;
        Ok(chain.iter().rposition(|id| roots.contains_key(id)).map_or(0, |at| at + 1))
    }

    /// Unpacks one more layer over the existing ones.
    pub(crate) async fn lay(
        &self,
        settings: &Settings,
        index: usize,
        packed: Packed,
    ) -> Result<(), ImageError> {
        let (disk, layers) = (Arc::clone(&self.disk), settings.layers[..=index].to_vec());
        blocking(move || disk.lay(&layers, packed)).await
    }

    /// Records the complete image under a name.
    pub(crate) async fn name(
        &self,
        turn: Turn,
        name: &Name,
        digest: Digest,
        settings: Settings,
    ) -> Result<Record, ImageError> {
        let (disk, name) = (Arc::clone(&self.disk), name.clone());
        blocking(move || {
            let _turn = turn;
            let chain = chain(&settings.layers);
            let roots = disk.chains()?;
            let root = chain.last().and_then(|top| roots.get(top)).cloned();
            let root = root.ok_or_else(|| ImageError::refused("it has no layers"))?;
            let bytes = disk.size(&root)?.bytes;
            let Variables { env, path } = settings.variables;
            let name = name.as_str().to_owned();
            let record = Record { name, digest: Some(digest), root, chain, env, path, bytes, created: now() };
            disk.put(&record)?;
            // Roots that cannot be removed now are removed later.
            let _ = disk.collect();
            Ok(record)
        })
        .await
    }

    /// Copies files of the host into an image.
    pub async fn seal(&self, parts: Vec<seal::Part>) -> Result<Record, ImageError> {
        let turn = self.turn().await?;
        let disk = Arc::clone(&self.disk);
        blocking(move || {
            let _turn = turn;
            disk.seal(&parts)
        })
        .await
    }
}

/// Resolves image names for an engine.
impl Images for Store {
    fn find(&self, name: &str) -> Result<Stored, ImagesError> {
        let unknown = |error: ImageError| match error.fault() {
            belljar_engine::Fault::Host => ImagesError::Host(error.to_string()),
            _ => ImagesError::Unknown(error.to_string()),
        };
        let name = Name::parse(name).map_err(unknown)?;
        let held = Self::find(self, &name).map_err(unknown)?;
        let held = held.ok_or_else(|| unknown(ImageError::NotFound(name.to_string())))?;
        let Record { env, path, .. } = held.record.clone();
        let sealed = name.as_str() == Name::SEALED;
        Ok(Stored { folder: held.folder.clone(), env, path, sealed, held: Arc::new(held) })
    }
}

impl Disk {
    fn record(&self, file: &str) -> Result<Option<Record>, ImageError> {
        let Some(text) = self.images.read(file, MAX_RECORD)? else { return Ok(None) };
        let record = serde_json::from_slice(&text);
        record.map(Some).map_err(|error| ImageError::Io {
            doing: "read",
            path: self.images.path().join(file),
            cause: error.to_string(),
        })
    }

    fn records(&self) -> Result<Vec<Record>, ImageError> {
        let files = self.images.names()?;
        let found = files.iter().map(|file| self.record(file)).collect::<Result<Vec<_>, _>>()?;
        let mut records: Vec<Record> = found.into_iter().flatten().collect();
        records.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(records)
    }

    fn put(&self, record: &Record) -> Result<(), ImageError> {
        let nook = Nook::new(&self.staging)?;
        let text = serde_json::to_vec(record).map_err(|error| ImageError::refused(error.to_string()))?;
        nook.folder().write("record", &text, Mode::RUSR | Mode::WUSR)?;
        let file = format!("{}.json", digest_of(record.name.as_bytes()));
        rustix::fs::renameat(nook.folder(), "record", &self.images, &file)
            .map_err(|errno| self.images.failed("write", &file, errno).into())
    }

    /// Returns the names of all roots that consist of layers, by chain ID.
    fn chains(&self) -> Result<BTreeMap<Digest, String>, ImageError> {
        let names = self.roots.names()?;
        Ok(names.into_iter().filter_map(|name| Some((chain_of(&name)?, name))).collect())
    }

    fn size(&self, root: &str) -> Result<Size, ImageError> {
        let text = self.roots.open(root)?.read(SIZE, MAX_RECORD)?.unwrap_or_default();
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }

    fn lay(&self, layers: &[Digest], packed: Packed) -> Result<(), ImageError> {
        let chain = chain(layers);
        let (Some(id), Some(digest)) = (chain.last(), layers.last()) else { return Ok(()) };
        let nook = Nook::new(&self.staging)?;
        let mut size = Size::default();
        let stage = nook.folder().child("stage")?;
        let root = stage.child(ROOT)?;
        if let Some(below) = chain.len().checked_sub(2).map(|at| chain[at]) {
            let name = self
                .chains()?
                .remove(&below)
                .ok_or_else(|| ImageError::refused("a lower layer is missing"))?;
            size = self.size(&name)?;
            let from = self.roots.open(&name)?.open(ROOT)?;
            clone(from.as_fd(), root.as_fd()).map_err(|errno| root.failed("unpack into", "", errno))?;
        }
        let room = Room {
            bytes: self.bounds.bytes.saturating_sub(size.bytes),
            entries: self.bounds.entries.saturating_sub(size.entries),
        };
        let mut archive = unnamed(nook.folder())?;
        layer::expand(packed.from, packed.size, &mut archive, digest, room.bytes)?;
        layer::look_over(&mut archive, room.entries)?;
        let top = opened(&root)?;
        let left = unpack(&top, &mut archive, room)?;
        drop(archive);
        set_names(&top).map_err(|errno| root.failed("unpack into", "etc", errno))?;
        let size = Size {
            bytes: size.bytes + (room.bytes - left.bytes),
            entries: size.entries + (room.entries - left.entries),
        };
        self.publish(&nook, &stage, size, &id.to_string()).map(drop)
    }

    fn seal(&self, parts: &[seal::Part]) -> Result<Record, ImageError> {
        let nook = Nook::new(&self.staging)?;
        let stage = nook.folder().child("stage")?;
        let top = opened(&stage.child(ROOT)?)?;
        let room = Room { bytes: self.bounds.bytes, entries: self.bounds.entries };
        let left = seal::copy(&top, parts, room)?;
        set_names(&top).map_err(|errno| stage.failed("copy into", "etc", errno))?;
        let size = Size { bytes: room.bytes - left.bytes, entries: room.entries - left.entries };
        let root = self.publish(&nook, &stage, size, Name::SEALED)?;
        let record = Record {
            name: Name::SEALED.to_owned(),
            digest: None,
            root,
            chain: Vec::new(),
            env: BTreeMap::new(),
            path: None,
            bytes: size.bytes,
            created: now(),
        };
        self.put(&record)?;
        let _ = self.collect();
        Ok(record)
    }

    /// Publishes a stage as a root by rename.
    fn publish(&self, nook: &Nook, stage: &Folder, size: Size, what: &str) -> Result<String, ImageError> {
        let text = serde_json::to_vec(&size).map_err(|error| ImageError::refused(error.to_string()))?;
        stage.write(SIZE, &text, Mode::RUSR | Mode::WUSR)?;
        let name = format!("{what}-{}", random_name()?);
        let failed = |errno| self.roots.failed("store", &name, errno);
        for folder in [stage, &stage.open(ROOT)?] {
            rustix::fs::fchmod(folder, FOLDER).map_err(failed)?;
        }
        settle(stage).map_err(failed)?;
        rustix::fs::renameat(nook.folder(), "stage", &self.roots, &name).map_err(failed)?;
        Ok(name)
    }

    /// Removes roots that are neither needed nor in use, and leftover downloads.
    fn collect(&self) -> Result<Removed, ImageError> {
        let records = self.records()?;
        let roots: BTreeSet<&str> = records.iter().map(|record| record.root.as_str()).collect();
        let chains: BTreeSet<&Digest> = records.iter().flat_map(|record| &record.chain).collect();
        let mut removed = Removed { roots: 0, used: 0 };
        for name in self.roots.names()? {
            let needed = chain_of(&name).is_some_and(|chain| chains.contains(&chain));
            if needed || roots.contains(name.as_str()) {
                continue;
            }
            let Some(lock) = Lock::try_take(&self.locks, &name, How::Alone)? else {
                removed.used += 1;
                continue;
            };
            let nook = Nook::new(&self.staging)?;
            rustix::fs::renameat(&self.roots, &name, nook.folder(), "gone")
                .map_err(|errno| self.roots.failed("remove", &name, errno))?;
            lock.remove()?;
            removed.roots += 1;
        }
        for name in self.blobs.names()? {
            remove(&self.blobs, &name)?;
        }
        Ok(removed)
    }
}

/// Returns the chain ID in a root's name.
fn chain_of(name: &str) -> Option<Digest> {
    name.split_once('-')?.0.parse().ok()
}

fn file_of(name: &Name) -> String {
    format!("{}.json", digest_of(name.as_str().as_bytes()))
}

fn opened(folder: &Folder) -> Result<OwnedFd, ImageError> {
    let fd = folder.as_fd().try_clone_to_owned();
    fd.map_err(|error| ImageError::io("open", folder.path(), error))
}

/// Creates an unlinked temporary file.
fn unnamed(folder: &Folder) -> Result<File, ImageError> {
    let fd = rustix::fs::openat(folder, "layer", NEW_FILE, Mode::RUSR | Mode::WUSR);
    let fd = fd.map_err(|errno| folder.failed("write", "layer", errno))?;
    folder.unlink("layer")?;
    Ok(File::from(fd))
}

/// Sets the resolver that an egress gate serves. Skips an image whose `etc` is not a folder.
fn set_names(root: &OwnedFd) -> Result<(), Errno> {
    let etc = match rustix::fs::openat(root, "etc", OPEN_FOLDER, Mode::empty()) {
        Ok(etc) => etc,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    belljar_layers::shelf::remove_at(etc.as_fd(), "resolv.conf")?;
    let file = rustix::fs::openat(&etc, "resolv.conf", NEW_FILE, Mode::from_raw_mode(0o644))?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
    rustix::io::write(&file, NAMES).map(drop)
}

/// Syncs all files to disk before they are published.
#[cfg(target_os = "linux")]
fn settle(folder: &Folder) -> Result<(), Errno> {
    rustix::fs::syncfs(folder)
}

#[cfg(not(target_os = "linux"))]
fn settle(_folder: &Folder) -> Result<(), Errno> {
    rustix::fs::sync();
    Ok(())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Runs blocking work on a separate thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(ImageError::io("start", "a thread", std::io::Error::other(error))))
}
