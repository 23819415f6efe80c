//! A cache shared between machines: a folder that all of them mount, or a bucket. It saves builds and is
//! never required. A failure is reported once, and the cache is not used for a while.
//!
//! ```text
//! KEY/layer.json    SHA-256 and length of the archive. Written last, so a layer is complete or absent
//! KEY/SHA256.tar    the archive, as `belljar deps export` writes it
//! ```
//!
//! - A download is bounded and hashed, and then imported like any archive: its manifest must match the
//!   requested recipe, and every file must match the manifest. Otherwise the layer is built here.
//! - The scope is part of a layer's recipe and so of `KEY`: a layer built for one tenant is never requested
//!   for another one, on any machine.
//! - As in the store, hashes detect damage and mix-ups, not forgery: anyone who can write there is trusted.
//!
//! It is asked before a layer is built, and gets new layers by a task beside the run. Nothing waits for it
//! longer than `shared_cache_wait`, and after a failure it is not used for a minute.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use belljar_beneath::folder::NEW_FILE_FLAGS;
use belljar_beneath::{ContentDigest, Hasher, StagingDir, blocking};
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{Error, GetResult, ObjectStore, ObjectStoreExt, WriteMultipart};
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::StoreWarning;
use super::address::SharedCache;
use super::disk::{DiskStore, LayerLease};
use super::error::LayerStoreError;
use super::manifest::LayerKey;

/// How long the cache is not used after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// How much larger than its files an archive may be.
const ARCHIVE_OVERHEAD_BYTES: u64 = 1 << 30;
const LABEL_FILE: &str = "layer.json";
const MAX_LABEL_BYTES: u64 = 4 << 10;
/// Part size of an upload, and how many parts are in flight.
const PART_BYTES: usize = 8 << 20;
const MAX_PARTS_IN_FLIGHT: usize = 2;
/// Maximum number of received chunks that are not written yet.
const MAX_PENDING_CHUNKS: usize = 4;
/// Maximum number of pending uploads; one runs at a time.
const MAX_UPLOADS: usize = 16;
const MAX_MESSAGE_CHARS: usize = 300;

/// The shared cache. It is opened at the first request.
pub(super) struct RemoteCache {
    settings: SharedCache,
    store: OnceLock<Result<Arc<dyn ObjectStore>, String>>,
    /// When it failed; cleared when it works again.
    failed: Mutex<Option<Instant>>,
    uploads: Mutex<JoinSet<()>>,
    /// Held by the running upload.
    upload_lock: tokio::sync::Mutex<()>,
}

impl fmt::Debug for RemoteCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Remote").field(&self.settings).finish()
    }
}

/// Identifies the archive of a layer.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArchiveLabel {
    sha256: ContentDigest,
    bytes: u64,
}

impl ArchiveLabel {
    fn path(&self, key: &LayerKey) -> Path {
        Path::from(format!("{key}/{}.tar", self.sha256))
    }
}

/// Why the cache did not help.
enum RemoteFailure {
    /// The cache does not work.
    Unavailable(String),
    /// The cache works, but the object is invalid.
    Invalid(String),
}

impl From<Error> for RemoteFailure {
    fn from(error: Error) -> Self {
        Self::Unavailable(sanitize_message(&error))
    }
}

impl From<LayerStoreError> for RemoteFailure {
    fn from(error: LayerStoreError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

/// Makes a remote message safe to print: bounded, without control characters.
fn sanitize_message(said: &dyn fmt::Display) -> String {
    said.to_string().chars().take(MAX_MESSAGE_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl RemoteFailure {
    fn invalid(why: &str) -> Self {
        Self::Invalid(why.to_owned())
    }

    fn scratch(error: &io::Error) -> Self {
        LayerStoreError::from_io("write", "an archive", error).into()
    }
}

impl RemoteCache {
    pub(super) fn new(settings: SharedCache) -> Self {
        Self {
            settings,
            store: OnceLock::new(),
            failed: Mutex::default(),
            uploads: Mutex::default(),
            upload_lock: tokio::sync::Mutex::default(),
        }
    }

    /// Fetches a layer and imports it into this store.
    pub(super) async fn fetch(&self, disk: &Arc<DiskStore>, key: &LayerKey) -> Option<LayerLease> {
        let (staging_dir, file) = self.attempt(disk, key, self.download(disk, key)).await.flatten()?;
        let (disk_store, wanted) = (Arc::clone(disk), *key);
        let import = move || {
            let _nook = staging_dir;
            let held = disk_store.import(file, Some(&wanted))?;
            disk_store.enforce_bounds();
            Ok(held)
        };
        match blocking(import).await {
            Ok(held) => Some(held),
            Err(error) => {
                let why = match &error {
                    LayerStoreError::Archive(why) => sanitize_message(why),
                    error => sanitize_message(error),
                };
                (disk.warnings)(&StoreWarning::SharedLayerInvalid { key: *key, why });
                None
            }
        }
    }

    /// Uploads a layer in the background.
    pub(super) fn upload_in_background(self: &Arc<Self>, disk: &Arc<DiskStore>, held: &LayerLease) {
        if self.settings.read_only {
            return;
        }
        let mut uploads = self.uploads();
        while uploads.try_join_next().is_some() {}
        if uploads.len() >= MAX_UPLOADS {
            let why = format!("it is too slow; layer {} was not uploaded", held.key());
            return (disk.warnings)(&StoreWarning::SharedCacheFailed { why });
        }
        let (remote, disk, held) = (Arc::clone(self), Arc::clone(disk), held.clone());
        uploads.spawn(async move {
            let _turn = remote.upload_lock.lock().await;
            remote.attempt(&disk, &held.key(), remote.upload(&disk, &held)).await;
        });
    }

    /// Waits for all uploads, with the timeout of one.
    pub(super) async fn wait_for_uploads(&self) {
        let mut uploads = std::mem::take(&mut *self.uploads());
        let all = async { while uploads.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(self.settings.timeout, all).await;
    }

    /// Runs an operation, unless the cache failed recently.
    async fn attempt<T>(
        &self,
        disk: &DiskStore,
        key: &LayerKey,
        work: impl Future<Output = Result<T, RemoteFailure>>,
    ) -> Option<T> {
        let failed = || self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *failed();
        if before.is_some_and(|time| time.elapsed() < RETRY_AFTER) {
            return None;
        }
        let why = match tokio::time::timeout(self.settings.timeout, work).await {
            Ok(Ok(value)) => {
                *failed() = None;
                return Some(value);
            }
            Ok(Err(RemoteFailure::Invalid(why))) => {
                (disk.warnings)(&StoreWarning::SharedLayerInvalid { key: *key, why });
                return None;
            }
            Ok(Err(RemoteFailure::Unavailable(why))) => why,
            Err(_) => format!("timed out after {} ms", self.settings.timeout.as_millis()),
        };
        if failed().replace(Instant::now()).is_none() {
            (disk.warnings)(&StoreWarning::SharedCacheFailed { why });
        }
        None
    }

    /// Downloads the archive of a layer and checks its length and hash against the label.
    async fn download(
        &self,
        disk: &Arc<DiskStore>,
        key: &LayerKey,
    ) -> Result<Option<(StagingDir, File)>, RemoteFailure> {
        let store = self.store()?;
        let Some(label) = self.label(key).await? else { return Ok(None) };
        if label.bytes > disk.bounds.layer_bytes.saturating_add(ARCHIVE_OVERHEAD_BYTES) {
            return Err(RemoteFailure::invalid("it exceeds the maximum size of a layer"));
        }
        let found = match store.get(&label.path(key)).await {
            Err(Error::NotFound { .. }) => return Err(RemoteFailure::invalid("its archive is missing")),
            found => found?,
        };
        let (disk_store, (sender, chunks)) = (Arc::clone(disk), mpsc::channel(MAX_PENDING_CHUNKS));
        let taking = tokio::task::spawn_blocking(move || receive_archive(&disk_store, &label, chunks));
        let mut stream = found.into_stream();
        while let Some(chunk) = stream.next().await {
            // The receiver stops at a chunk beyond the announced length.
            if sender.send(chunk?).await.is_err() {
                break;
            }
        }
        drop(sender);
        taking.await.map_err(|error| RemoteFailure::Unavailable(error.to_string()))?.map(Some)
    }

    async fn label(&self, key: &LayerKey) -> Result<Option<ArchiveLabel>, RemoteFailure> {
        let found = match self.store()?.get(&label_path(key)).await {
            Err(Error::NotFound { .. }) => return Ok(None),
            found => found?,
        };
        let text = read_bounded(found, MAX_LABEL_BYTES).await?;
        let label = serde_json::from_slice(&text);
        label.map(Some).map_err(|error| {
            RemoteFailure::Invalid(format!("its label cannot be read ({})", sanitize_message(&error)))
        })
    }

    async fn upload(&self, disk: &Arc<DiskStore>, held: &LayerLease) -> Result<(), RemoteFailure> {
        let (store, key) = (self.store()?, held.key());
        let (disk, layer) = (Arc::clone(disk), held.clone());
        let (_nook, file, label) = blocking(move || export_to_file(&disk, &layer)).await?;
        let upload = store.put_multipart(&label.path(&key)).await?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        match send(&mut upload, file).await {
            Ok(()) => upload.finish().await?,
            Err(failure) => {
                // Unfinished uploads are invisible, but cost money.
                let _ = upload.abort().await;
                return Err(failure);
            }
        };
        let text =
            serde_json::to_vec(&label).map_err(|error| RemoteFailure::Unavailable(error.to_string()))?;
        store.put(&label_path(&key), text.into()).await?;
        Ok(())
    }

    fn store(&self) -> Result<&Arc<dyn ObjectStore>, RemoteFailure> {
        let SharedCache { address, timeout: wait, read_only } = &self.settings;
        let opened = self.store.get_or_init(|| address.open(*wait, *read_only));
        opened.as_ref().map_err(|why| RemoteFailure::Unavailable(why.clone()))
    }

    fn uploads(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn label_path(key: &LayerKey) -> Path {
    Path::from(format!("{key}/{LABEL_FILE}"))
}

/// Reads an object of at most `most` bytes.
async fn read_bounded(found: GetResult, most: u64) -> Result<Vec<u8>, RemoteFailure> {
    let (mut bytes, mut stream) = (Vec::new(), found.into_stream());
    while let Some(chunk) = stream.next().await {
        bytes.extend_from_slice(&chunk?);
        if bytes.len() as u64 > most {
            return Err(RemoteFailure::invalid("its label is too long"));
        }
    }
    Ok(bytes)
}

/// Writes the chunks to a file, and checks them against the label.
fn receive_archive(
    disk: &DiskStore,
    label: &ArchiveLabel,
    mut chunks: mpsc::Receiver<impl AsRef<[u8]>>,
) -> Result<(StagingDir, File), RemoteFailure> {
    let (staging_dir, mut file) = temporary_file(disk)?;
    let (mut hasher, mut left) = (Hasher::raw(), label.bytes);
    while let Some(chunk) = chunks.blocking_recv() {
        let chunk = chunk.as_ref();
        let rest = left.checked_sub(chunk.len() as u64);
        left = rest.ok_or_else(|| RemoteFailure::invalid("its archive is longer than its label says"))?;
        hasher.bytes(chunk);
        file.write_all(chunk).map_err(|error| RemoteFailure::scratch(&error))?;
    }
    if left > 0 {
        return Err(RemoteFailure::invalid("its archive is shorter than its label says"));
    }
    if hasher.finish() != label.sha256 {
        return Err(RemoteFailure::invalid("its archive does not match the hash in its label"));
    }
    Ok((staging_dir, file))
}

/// Writes a layer's archive to a temporary file.
fn export_to_file(
    disk: &DiskStore,
    held: &LayerLease,
) -> Result<(StagingDir, File, ArchiveLabel), LayerStoreError> {
    let (staging_dir, file) = temporary_file(disk)?;
    let mut to = HashingWriter { file: &file, hasher: Hasher::raw(), bytes: 0 };
    disk.export(held, &mut to)?;
    let label = ArchiveLabel { bytes: to.bytes, sha256: to.hasher.finish() };
    (&file)
        .seek(SeekFrom::Start(0))
        .map_err(|error| LayerStoreError::from_io("read", "an archive", &error))?;
    Ok((staging_dir, file, label))
}

async fn send(upload: &mut WriteMultipart, mut file: File) -> Result<(), RemoteFailure> {
    loop {
        let read = move || {
            let mut part = Vec::new();
            let read = (&mut file).take(PART_BYTES as u64).read_to_end(&mut part);
            read.map_err(|error| LayerStoreError::from_io("read", "an archive", &error))?;
            Ok::<_, LayerStoreError>((file, part))
        };
        let part;
        (file, part) = blocking(read).await?;
        if part.is_empty() {
            return Ok(());
        }
        upload.wait_for_capacity(MAX_PARTS_IN_FLIGHT).await?;
        upload.put(part.into());
    }
}

/// Creates a temporary file for an archive.
fn temporary_file(disk: &DiskStore) -> Result<(StagingDir, File), LayerStoreError> {
    let staging_dir = StagingDir::new(&disk.staging)?;
    let file = rustix::fs::openat(staging_dir.folder(), "archive", NEW_FILE_FLAGS, Mode::RUSR | Mode::WUSR);
    let file = file.map_err(|errno| staging_dir.folder().error("write", "archive", errno))?;
    Ok((staging_dir, File::from(file)))
}

/// A file that is hashed while it is written.
struct HashingWriter<'a> {
    file: &'a File,
    hasher: Hasher,
    bytes: u64,
}

impl Write for HashingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.bytes(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
