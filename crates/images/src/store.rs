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
//!
//! Warm interpreters and built root trees identify a root by its path. A root is a plain folder: interpreters
//! are found in it by name, and nothing is stacked at run time except the private overlay of each jail, which
//! gives it inodes of its own (`mounts` in the jail). There is no writable overlay: a run writes to its own
//! disk, because no user inside owns the files of an image.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use belljar_beneath::folder::{NEW_FILE_FLAGS, OPEN_FOLDER_FLAGS, sync_files, unix_seconds};
use belljar_beneath::{
    ContentDigest, FileLock, LockMode, RemovalRules, StagingDir, StoreFolder, UnpackBudget, blocking,
    random_name, remove_tree, sweep_staging,
};
use belljar_engine::images::{ImageVariables, ImagesError, StoredImages};
use belljar_engine::plan::StoredImage;
use rustix::fs::Mode;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::clone::{FOLDER_MODE, clone_tree};
use crate::documents::{ImageConfig, chain_ids};
use crate::error::ImageError;
use crate::name::ImageName;
use crate::unpack::unpack;
use crate::{layer, seal};

const MAX_RECORD_BYTES: u64 = 1 << 20;
const ROOT_FOLDER: &str = "root";
const SIZE_FILE: &str = "size.json";
const LOCK_FILE: &str = "turn";
/// The resolver of sandboxes with an egress gate; sandboxes without a network cannot resolve names.
const RESOLV_CONF: &[u8] = b"nameserver 127.0.0.1\noptions timeout:5 attempts:2\n";

/// Limits for one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageBounds {
    /// Unpacked size in bytes.
    pub unpacked_bytes: u64,
    /// Number of files, folders and links.
    pub entries: u64,
    /// Download size in bytes.
    pub download_bytes: u64,
}

impl Default for ImageBounds {
    fn default() -> Self {
        Self { unpacked_bytes: 32 << 30, entries: 2_000_000, download_bytes: 16 << 30 }
    }
}

/// The record of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// The full name.
    pub name: String,
    /// Digest of the manifest, or else of the configuration or the only layer. `None` for a sealed image.
    pub digest: Option<ContentDigest>,
    /// Folder name of the root.
    root: String,
    /// Chain IDs of the layers.
    chain: Vec<ContentDigest>,
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
struct RootSize {
    bytes: u64,
    entries: u64,
}

/// A lease on an image: the image is not removed while this exists.
#[derive(Debug)]
pub struct ImageLease {
    /// The image's record.
    pub record: ImageRecord,
    /// The root folder.
    pub folder: PathBuf,
    _lock: FileLock,
}

/// The result of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovalResult {
    /// Number of removed roots.
    pub roots: u64,
    /// Number of roots in use; the next removal tries again.
    pub in_use: u64,
}

/// A store of images in one folder. Clones share it.
#[derive(Debug, Clone)]
pub struct ImageStore {
    disk: Arc<ImageDisk>,
}

#[derive(Debug)]
struct ImageDisk {
    top: Arc<StoreFolder>,
    images: StoreFolder,
    roots: StoreFolder,
    locks: Arc<StoreFolder>,
    blobs: StoreFolder,
    staging: Arc<StoreFolder>,
    bounds: ImageBounds,
}

/// The exclusive right to add and remove images.
#[derive(Debug)]
pub(crate) struct ImageStoreLock(#[expect(dead_code, reason = "held")] FileLock);

/// A layer archive to unpack.
pub(crate) struct PackedLayer {
    pub(crate) from: Box<dyn Read + Send>,
    /// Size of the archive in bytes.
    pub(crate) size: u64,
}

impl ImageStore {
    /// Opens the store, creates its folder if it is missing, and removes unfinished work of killed processes.
    pub fn open(folder: &Path, bounds: ImageBounds) -> Result<Self, ImageError> {
        let top = Arc::new(StoreFolder::open_top(folder)?);
        let staging = Arc::new(top.open_or_create("staging")?);
        sweep_staging(&staging)?;
        let disk = ImageDisk {
            images: top.open_or_create("images")?,
            roots: top.open_or_create("roots")?,
            locks: Arc::new(top.open_or_create("locks")?),
            blobs: top.open_or_create("blobs")?,
            staging,
            top,
            bounds,
        };
        Ok(Self { disk: Arc::new(disk) })
    }

    /// Waits until no other process adds or removes images.
    pub(crate) async fn lock(&self) -> Result<ImageStoreLock, ImageError> {
        Ok(ImageStoreLock(FileLock::acquire_async(&self.disk.top, LOCK_FILE, LockMode::Exclusive).await?))
    }

    pub(crate) fn bounds(&self) -> ImageBounds {
        self.disk.bounds
    }

    pub(crate) fn blobs(&self) -> &Path {
        self.disk.blobs.path()
    }

    /// Finds an image by name.
    pub fn find(&self, name: &ImageName) -> Result<Option<ImageLease>, ImageError> {
        // The image may be replaced between reading the record and locking the root, but not repeatedly.
        for _ in 0..8 {
            let Some(record) = self.disk.record(&record_file(name))? else { return Ok(None) };
            let lock = FileLock::acquire(&self.disk.locks, &record.root, LockMode::Shared)?;
            if self.disk.roots.stat(&record.root)?.is_some() {
                let folder = self.disk.roots.path().join(&record.root).join(ROOT_FOLDER);
                return Ok(Some(ImageLease { record, folder, _lock: lock }));
            }
        }
        Ok(None)
    }

    /// Lists all images by name.
    pub fn list(&self) -> Result<Vec<ImageRecord>, ImageError> {
        self.disk.records()
    }

    /// Removes a name, and all roots that are no longer needed.
    pub async fn remove(&self, name: &ImageName) -> Result<RemovalResult, ImageError> {
        let turn = self.lock().await?;
        let (disk, file, shown) = (Arc::clone(&self.disk), record_file(name), name.to_string());
        blocking(move || {
            let _turn = turn;
            disk.record(&file)?.ok_or(ImageError::NotFound(shown))?;
            disk.images.unlink(&file)?;
            disk.remove_unused()
        })
        .await
    }

    /// Returns how many of the lowest layers are already unpacked.
    pub(crate) fn unpacked_layers(&self, settings: &ImageConfig) -> Result<usize, ImageError> {
        let chain = chain_ids(&settings.layers);
        let roots = self.disk.roots_by_chain()?;
        Ok(chain.iter().rposition(|id| roots.contains_key(id)).map_or(0, |at| at + 1))
    }

    /// Unpacks one more layer over the existing ones.
    pub(crate) async fn add_layer(
        &self,
        settings: &ImageConfig,
        index: usize,
        packed: PackedLayer,
    ) -> Result<(), ImageError> {
        let (disk, layers) = (Arc::clone(&self.disk), settings.layers[..=index].to_vec());
        blocking(move || disk.add_layer(&layers, packed)).await
    }

    /// Records the complete image under one name.
    pub(crate) async fn record_image(
        &self,
        turn: ImageStoreLock,
        name: &ImageName,
        digest: ContentDigest,
        settings: ImageConfig,
    ) -> Result<ImageRecord, ImageError> {
        let records = self.record_names(turn, vec![name.clone()], digest, settings).await?;
        records.into_iter().next().ok_or_else(|| ImageError::refused("it has no name"))
    }

    /// Records the complete image under each of these names.
    pub(crate) async fn record_names(
        &self,
        turn: ImageStoreLock,
        names: Vec<ImageName>,
        digest: ContentDigest,
        settings: ImageConfig,
    ) -> Result<Vec<ImageRecord>, ImageError> {
        let disk = Arc::clone(&self.disk);
        blocking(move || {
            let _turn = turn;
            let chain = chain_ids(&settings.layers);
            let roots = disk.roots_by_chain()?;
            let root = chain.last().and_then(|top| roots.get(top)).cloned();
            let root = root.ok_or_else(|| ImageError::refused("it has no layers"))?;
            let bytes = disk.size(&root)?.bytes;
            let ImageVariables { env, path } = settings.variables;
            let record = |name: &ImageName| ImageRecord {
                name: name.as_str().to_owned(),
                digest: Some(digest),
                root: root.clone(),
                chain: chain.clone(),
                env: env.clone(),
                path: path.clone(),
                bytes,
                created: unix_seconds(SystemTime::now()),
            };
            let records: Vec<ImageRecord> = names.iter().map(record).collect();
            records.iter().try_for_each(|record| disk.write_record(record))?;
            // Roots that cannot be removed now are removed later.
            let _ = disk.remove_unused();
            Ok(records)
        })
        .await
    }

    /// Copies files of the host into an image.
    pub async fn seal(&self, parts: Vec<seal::SealEntry>) -> Result<ImageRecord, ImageError> {
        let turn = self.lock().await?;
        let disk = Arc::clone(&self.disk);
        blocking(move || {
            let _turn = turn;
            disk.seal(&parts)
        })
        .await
    }
}

/// Resolves image names for an engine.
impl StoredImages for ImageStore {
    fn find(&self, name: &str) -> Result<StoredImage, ImagesError> {
        let unknown = |error: ImageError| match error.fault() {
            belljar_engine::Fault::Host => ImagesError::Host(error.to_string()),
            _ => ImagesError::Unknown(error.to_string()),
        };
        let name = ImageName::parse(name).map_err(unknown)?;
        let held = Self::find(self, &name).map_err(unknown)?;
        let held = held.ok_or_else(|| unknown(ImageError::NotFound(name.to_string())))?;
        let ImageRecord { env, path, .. } = held.record.clone();
        let sealed = name.as_str() == ImageName::SEALED;
        Ok(StoredImage { folder: held.folder.clone(), env, path, from_host: sealed, lease: Arc::new(held) })
    }
}

impl ImageDisk {
    fn record(&self, file: &str) -> Result<Option<ImageRecord>, ImageError> {
        let Some(text) = self.images.read(file, MAX_RECORD_BYTES)? else { return Ok(None) };
        let record = serde_json::from_slice(&text);
        record.map(Some).map_err(|error| ImageError::Io {
            doing: "read",
            path: self.images.path().join(file),
            cause: error.to_string(),
        })
    }

    fn records(&self) -> Result<Vec<ImageRecord>, ImageError> {
        let files = self.images.names()?;
        let found = files.iter().map(|file| self.record(file)).collect::<Result<Vec<_>, _>>()?;
        let mut records: Vec<ImageRecord> = found.into_iter().flatten().collect();
        records.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(records)
    }

    fn write_record(&self, record: &ImageRecord) -> Result<(), ImageError> {
        let staging_dir = StagingDir::new(&self.staging)?;
        let text = serde_json::to_vec(record).map_err(|error| ImageError::refused(error.to_string()))?;
        staging_dir.folder().write("record", &text, Mode::RUSR | Mode::WUSR)?;
        let file = format!("{}.json", ContentDigest::from_bytes(record.name.as_bytes()));
        rustix::fs::renameat(staging_dir.folder(), "record", &self.images, &file)
            .map_err(|errno| self.images.error("write", &file, errno).into())
    }

    /// Returns the names of all roots that consist of layers, by chain ID.
    fn roots_by_chain(&self) -> Result<BTreeMap<ContentDigest, String>, ImageError> {
        let names = self.roots.names()?;
        Ok(names.into_iter().filter_map(|name| Some((chain_in_name(&name)?, name))).collect())
    }

    fn size(&self, root: &str) -> Result<RootSize, ImageError> {
        let text = self.roots.open(root)?.read(SIZE_FILE, MAX_RECORD_BYTES)?.unwrap_or_default();
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }

    fn add_layer(&self, layers: &[ContentDigest], packed: PackedLayer) -> Result<(), ImageError> {
        let chain = chain_ids(layers);
        let (Some(id), Some(digest)) = (chain.last(), layers.last()) else { return Ok(()) };
        let staging_dir = StagingDir::new(&self.staging)?;
        let mut size = RootSize::default();
        let stage = staging_dir.folder().open_or_create("stage")?;
        let root = stage.open_or_create(ROOT_FOLDER)?;
        if let Some(below) = chain.len().checked_sub(2).map(|at| chain[at]) {
            let name = self
                .roots_by_chain()?
                .remove(&below)
                .ok_or_else(|| ImageError::refused("a lower layer is missing"))?;
            size = self.size(&name)?;
            let from = self.roots.open(&name)?.open(ROOT_FOLDER)?;
            clone_tree(from.as_fd(), root.as_fd()).map_err(|errno| root.error("unpack into", "", errno))?;
        }
        let room = UnpackBudget {
            bytes: self.bounds.unpacked_bytes.saturating_sub(size.bytes),
            entries: self.bounds.entries.saturating_sub(size.entries),
        };
        let mut archive = unnamed(staging_dir.folder())?;
        layer::expand(packed.from, packed.size, &mut archive, digest, room.bytes)?;
        layer::check_headers(&mut archive, room.entries)?;
        let top = clone_fd(&root)?;
        let left = unpack(&top, &mut archive, room)?;
        drop(archive);
        write_resolv_conf(&top).map_err(|errno| root.error("unpack into", "etc", errno))?;
        let size = RootSize {
            bytes: size.bytes + (room.bytes - left.bytes),
            entries: size.entries + (room.entries - left.entries),
        };
        self.publish(&staging_dir, &stage, size, &id.to_string()).map(drop)
    }

    fn seal(&self, parts: &[seal::SealEntry]) -> Result<ImageRecord, ImageError> {
        let staging_dir = StagingDir::new(&self.staging)?;
        let stage = staging_dir.folder().open_or_create("stage")?;
        let top = clone_fd(&stage.open_or_create(ROOT_FOLDER)?)?;
        let room = UnpackBudget { bytes: self.bounds.unpacked_bytes, entries: self.bounds.entries };
        let left = seal::copy(&top, parts, room)?;
        write_resolv_conf(&top).map_err(|errno| stage.error("copy into", "etc", errno))?;
        let size = RootSize { bytes: room.bytes - left.bytes, entries: room.entries - left.entries };
        let root = self.publish(&staging_dir, &stage, size, ImageName::SEALED)?;
        let record = ImageRecord {
            name: ImageName::SEALED.to_owned(),
            digest: None,
            root,
            chain: Vec::new(),
            env: BTreeMap::new(),
            path: None,
            bytes: size.bytes,
            created: unix_seconds(SystemTime::now()),
        };
        self.write_record(&record)?;
        let _ = self.remove_unused();
        Ok(record)
    }

    /// Publishes a stage as a root by rename.
    fn publish(
        &self,
        staging_dir: &StagingDir,
        stage: &StoreFolder,
        size: RootSize,
        what: &str,
    ) -> Result<String, ImageError> {
        let text = serde_json::to_vec(&size).map_err(|error| ImageError::refused(error.to_string()))?;
        stage.write(SIZE_FILE, &text, Mode::RUSR | Mode::WUSR)?;
        let name = format!("{what}-{}", random_name()?);
        let failed = |errno| self.roots.error("store", &name, errno);
        for folder in [stage, &stage.open(ROOT_FOLDER)?] {
            rustix::fs::fchmod(folder, FOLDER_MODE).map_err(failed)?;
        }
        sync_files(stage).map_err(failed)?;
        rustix::fs::renameat(staging_dir.folder(), "stage", &self.roots, &name).map_err(failed)?;
        Ok(name)
    }

    /// Removes roots that are neither needed nor in use, and leftover downloads.
    fn remove_unused(&self) -> Result<RemovalResult, ImageError> {
        let records = self.records()?;
        let roots: BTreeSet<&str> = records.iter().map(|record| record.root.as_str()).collect();
        let chains: BTreeSet<&ContentDigest> = records.iter().flat_map(|record| &record.chain).collect();
        let mut removed = RemovalResult { roots: 0, in_use: 0 };
        for name in self.roots.names()? {
            let needed = chain_in_name(&name).is_some_and(|chain| chains.contains(&chain));
            if needed || roots.contains(name.as_str()) {
                continue;
            }
            let Some(lock) = FileLock::try_acquire(&self.locks, &name, LockMode::Exclusive)? else {
                removed.in_use += 1;
                continue;
            };
            let staging_dir = StagingDir::new(&self.staging)?;
            rustix::fs::renameat(&self.roots, &name, staging_dir.folder(), "gone")
                .map_err(|errno| self.roots.error("remove", &name, errno))?;
            lock.unlink_file()?;
            removed.roots += 1;
        }
        for name in self.blobs.names()? {
            self.blobs.remove_tree(&name)?;
        }
        Ok(removed)
    }
}

/// Returns the chain ID in a root's name.
fn chain_in_name(name: &str) -> Option<ContentDigest> {
    name.split_once('-')?.0.parse().ok()
}

fn record_file(name: &ImageName) -> String {
    format!("{}.json", ContentDigest::from_bytes(name.as_str().as_bytes()))
}

fn clone_fd(folder: &StoreFolder) -> Result<OwnedFd, ImageError> {
    let fd = folder.as_fd().try_clone_to_owned();
    fd.map_err(|error| ImageError::io("open", folder.path(), error))
}

/// Creates an unlinked temporary file.
fn unnamed(folder: &StoreFolder) -> Result<File, ImageError> {
    let fd = rustix::fs::openat(folder, "layer", NEW_FILE_FLAGS, Mode::RUSR | Mode::WUSR);
    let fd = fd.map_err(|errno| folder.error("write", "layer", errno))?;
    folder.unlink("layer")?;
    Ok(File::from(fd))
}

/// Sets the resolver that an egress gate serves. Skips an image whose `etc` is not a folder.
fn write_resolv_conf(root: &OwnedFd) -> Result<(), Errno> {
    let etc = match rustix::fs::openat(root, "etc", OPEN_FOLDER_FLAGS, Mode::empty()) {
        Ok(etc) => etc,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    remove_tree(&etc, "resolv.conf", RemovalRules::LEFTOVERS)?;
    let file = rustix::fs::openat(&etc, "resolv.conf", NEW_FILE_FLAGS, Mode::from_raw_mode(0o644))?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
    rustix::io::write(&file, RESOLV_CONF).map(drop)
}
