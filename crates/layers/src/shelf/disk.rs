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
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::error::ShelfError;
use super::folder::{Folder, random_name};
use super::keep::Weighed;
use super::lock::{How, Lock};
use super::manifest::{Key, Manifest, Recipe};
use super::nook::{FILES, Stage, sweep};
use super::tree::{Pass, Survey, survey};
use super::{Bounds, Notice, Tell};

const MANIFEST: &str = "manifest.json";
const MAX_MANIFEST: u64 = 16 << 20;
const CHANGE: &str = "change";
/// Precision of the last use: it is updated at most once per interval.
const USE_NOTED: Duration = Duration::from_secs(60);
/// Errors that indicate a damaged layer, rather than a problem of this machine.
const DAMAGE: [Errno; 5] = [Errno::NOENT, Errno::NOTDIR, Errno::ISDIR, Errno::LOOP, Errno::IO];
/// Maximum number of attempts to publish if other processes interfere.
const TRIES: u32 = 5;

/// The open folder, and the layers that this process has verified.
pub(super) struct Disk {
    pub(super) bounds: Bounds,
    pub(super) layers: Folder,
    pub(super) locks: Arc<Folder>,
    pub(super) staging: Arc<Folder>,
    pub(super) broken: Folder,
    pub(super) resolutions: Folder,
    pub(super) turns: Arc<Folder>,
    pub(super) tell: Tell,
    pub(super) weighed: Mutex<Option<Weighed>>,
    known: Mutex<HashMap<Key, Known>>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("layers", &self.layers.path()).finish_non_exhaustive()
    }
}

/// A layer that this process has verified.
struct Known {
    identity: Identity,
    manifest: Arc<Manifest>,
    held: Weak<Inner>,
}

/// Identifies a layer under a key and detects changes: inode and ctime of its two entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity([(u64, i64, i128); 2]);

/// A lease on a layer: the layer cannot be removed while the lease or a clone of it exists.
#[derive(Debug, Clone)]
pub struct Held(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    manifest: Arc<Manifest>,
    files: PathBuf,
    _lock: Lock,
}

impl Held {
    /// Returns the layer's key.
    pub fn key(&self) -> Key {
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

impl Disk {
    pub(super) fn open(folder: &Path, bounds: Bounds, tell: Tell) -> Result<Self, ShelfError> {
        let top = Folder::top(folder)?;
        let disk = Self {
            bounds,
            layers: top.child("layers")?,
            locks: Arc::new(top.child("locks")?),
            staging: Arc::new(top.child("staging")?),
            broken: top.child("broken")?,
            resolutions: top.child("resolutions")?,
            turns: Arc::new(top.child("turns")?),
            tell,
            weighed: Mutex::default(),
            known: Mutex::default(),
        };
        sweep(&disk.staging)?;
        Ok(disk)
    }

    /// Returns a layer that this process already uses. Costs three `stat` calls.
    pub(super) fn glance(&self, key: &Key) -> Result<Option<Held>, ShelfError> {
        let in_use = self.known().get(key).and_then(|known| Some((known.identity, known.held.upgrade()?)));
        let Some((identity, inner)) = in_use else { return Ok(None) };
        // Another process may have quarantined it.
        Ok((self.identity(key)? == Some(identity)).then_some(Held(inner)))
    }

    /// Finds a layer, and verifies it at its first use in this process. Quarantines a damaged one.
    pub(super) fn find(&self, key: &Key) -> Result<Option<Held>, ShelfError> {
        if self.identity(key)?.is_none() {
            return Ok(None);
        }
        let lock = Lock::take(&self.locks, &key.to_string(), How::Shared)?;
        let Some(identity) = self.identity(key)? else { return Ok(None) };
        let known = self
            .known()
            .get(key)
            .filter(|known| known.identity == identity)
            .map(|known| Arc::clone(&known.manifest));
        let manifest = match known {
            Some(manifest) => manifest,
            None => match self.check(key) {
                Ok(manifest) => Arc::new(manifest),
                Err(ShelfError::Broken { why, .. }) => {
                    self.move_away(key, identity, why)?;
                    return Ok(None);
                }
                Err(error) => return Err(error),
            },
        };
        Ok(Some(self.hold(identity, manifest, lock)))
    }

    fn hold(&self, identity: Identity, manifest: Arc<Manifest>, lock: Lock) -> Held {
        lock.touch(USE_NOTED);
        let key = manifest.key;
        let files = self.layers.path().join(key.to_string()).join(FILES);
        let inner = Arc::new(Inner { manifest: Arc::clone(&manifest), files, _lock: lock });
        self.known().insert(key, Known { identity, manifest, held: Arc::downgrade(&inner) });
        Held(inner)
    }

    /// Publishes the files of a stage. Returns the existing layer if there is one.
    pub(super) fn publish(
        &self,
        stage: &Stage,
        recipe: Recipe,
        expected: Option<&Survey>,
    ) -> Result<Held, ShelfError> {
        let survey = survey(files_of(stage.layer())?, Pass::Seal, self.bounds.layer_bytes)?;
        if expected.is_some_and(|expected| *expected != survey) {
            return Err(ShelfError::Archive("its files do not match its manifest".to_owned()));
        }
        let Survey { tree, bytes, entries } = survey;
        let key = recipe.key();
        let manifest = Manifest { key, recipe, tree, bytes, entries, made_at: seconds(SystemTime::now()) };
        let text = serde_json::to_vec(&manifest).map_err(|error| ShelfError::System(error.to_string()))?;
        if text.len() as u64 > MAX_MANIFEST {
            return Err(ShelfError::TooLarge { what: "bytes in a manifest", limit: MAX_MANIFEST });
        }
        stage.layer().write(MANIFEST, &text, Mode::from_raw_mode(0o444))?;
        to_disk(stage.layer())?;
        self.move_in(stage, Arc::new(manifest))
    }

    fn move_in(&self, stage: &Stage, manifest: Arc<Manifest>) -> Result<Held, ShelfError> {
        let key = manifest.key;
        let name = key.to_string();
        for _ in 0..TRIES {
            // Locked before the layer becomes visible, so that it cannot be removed before its first use.
            let lock = Lock::take(&self.locks, &name, How::Shared)?;
            let (from, staged) = stage.place();
            // A rename replaces an empty folder only, and a layer is never empty.
            match rustix::fs::renameat(from, staged, &self.layers, &name) {
                Ok(()) => {
                    let synced = rustix::fs::fsync(&self.layers);
                    synced.map_err(|errno| ShelfError::io("write", self.layers.path(), errno))?;
                    let identity = self.identity(&key)?;
                    let identity = identity.ok_or(ShelfError::NotFound(key))?;
                    return Ok(self.hold(identity, manifest, lock));
                }
                Err(Errno::EXIST | Errno::NOTEMPTY) => {}
                Err(errno) => return Err(self.layers.failed("publish", &name, errno)),
            }
            if let Some(theirs) = self.find(&key)? {
                return Ok(theirs);
            }
        }
        Err(ShelfError::Busy(self.layers.path().join(name)))
    }

    /// Reads a whole layer. Returns [`ShelfError::Broken`] if anything differs from what was published.
    pub(super) fn check(&self, key: &Key) -> Result<Manifest, ShelfError> {
        self.compare(key).map_err(|error| {
            let why = match error {
                ShelfError::Unfit { path, why } => format!("'{path}': {why}"),
                ShelfError::TooLarge { what, .. } => format!("more {what} than a layer has"),
                ShelfError::ReadOnly { .. } => "it cannot be read".to_owned(),
                ShelfError::Io { errno, .. } if DAMAGE.contains(&errno) => {
                    format!("it cannot be read: {errno}")
                }
                // A temporary problem of this machine does not mean that the layer is damaged.
                error => return error,
            };
            ShelfError::Broken { key: *key, why }
        })
    }

    fn compare(&self, key: &Key) -> Result<Manifest, ShelfError> {
        let broken = |why: &str| Err(ShelfError::Broken { key: *key, why: why.to_owned() });
        let folder = self.layers.open(&key.to_string())?;
        let Some(manifest) = self.manifest(key)? else { return broken("its manifest cannot be read") };
        if manifest.key != *key || !manifest.is_its_own() {
            return broken("its manifest belongs to another layer");
        }
        let mut names = folder.names()?;
        names.sort();
        if names != [FILES, MANIFEST] {
            return broken("unexpected entries next to its files");
        }
        let found = survey(files_of(&folder)?, Pass::Check, u64::MAX)?;
        if found != (Survey { tree: manifest.tree, bytes: manifest.bytes, entries: manifest.entries }) {
            return broken("its files differ from those published");
        }
        Ok(manifest)
    }

    /// Reads a whole layer, and quarantines it if it is damaged.
    pub(super) fn verify(&self, key: &Key) -> Result<Manifest, ShelfError> {
        if self.identity(key)?.is_none() {
            return Err(ShelfError::NotFound(*key));
        }
        let _lock = Lock::take(&self.locks, &key.to_string(), How::Shared)?;
        let identity = self.identity(key)?.ok_or(ShelfError::NotFound(*key))?;
        let checked = self.check(key);
        if let Err(ShelfError::Broken { why, .. }) = &checked {
            self.move_away(key, identity, why.clone())?;
        }
        checked
    }

    /// Returns a layer's manifest; `None` if it cannot be read.
    pub(super) fn manifest(&self, key: &Key) -> Result<Option<Manifest>, ShelfError> {
        let text = self.layers.read(&format!("{key}/{MANIFEST}"), MAX_MANIFEST)?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// Quarantines a damaged layer, even if it is in use, unless it has been replaced since.
    pub(super) fn move_away(&self, key: &Key, seen: Identity, why: String) -> Result<(), ShelfError> {
        let name = key.to_string();
        let _change = Lock::take(&self.locks, CHANGE, How::Alone)?;
        if self.identity(key)? != Some(seen) {
            return Ok(());
        }
        let moved =
            rustix::fs::renameat(&self.layers, &name, &self.broken, format!("{name}-{}", random_name()?));
        moved.map_err(|errno| self.layers.failed("move away", &name, errno))?;
        self.known().remove(key);
        (self.tell)(&Notice::Broken { key: *key, why });
        Ok(())
    }

    /// Moves an unused layer to another folder. Returns whether it was moved.
    pub(super) fn take_out(&self, key: &Key, into: &Folder) -> Result<bool, ShelfError> {
        let name = key.to_string();
        let Some(lock) = Lock::try_take(&self.locks, &name, How::Alone)? else { return Ok(false) };
        let _change = Lock::take(&self.locks, CHANGE, How::Alone)?;
        let taken = match rustix::fs::renameat(&self.layers, &name, into, &name) {
            Ok(()) => true,
            Err(Errno::NOENT) => false,
            Err(errno) => return Err(self.layers.failed("remove", &name, errno)),
        };
        self.known().remove(key);
        lock.remove()?;
        Ok(taken)
    }

    /// Returns the identity of the layer under a key.
    pub(super) fn identity(&self, key: &Key) -> Result<Option<Identity>, ShelfError> {
        let look = |name: &str| {
            let stat = self.layers.stat(&format!("{key}/{name}"))?;
            let of = |stat: rustix::fs::Stat| (stat.st_ino, stat.st_ctime, i128::from(stat.st_ctime_nsec));
            Ok::<_, ShelfError>(stat.map_or((0, 0, 0), of))
        };
        if self.layers.stat(&key.to_string())?.is_none() {
            return Ok(None);
        }
        Ok(Some(Identity([look(MANIFEST)?, look(FILES)?])))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the folder with a layer's files.
pub(super) fn files_of(layer: &Folder) -> Result<OwnedFd, ShelfError> {
    let files = layer.open(FILES)?;
    files.as_fd().try_clone_to_owned().map_err(|error| ShelfError::of("open", files.path(), &error))
}

/// One `syncfs` for all files: an `fsync` for each would take longer than the installation.
fn to_disk(folder: &Folder) -> Result<(), ShelfError> {
    #[cfg(target_os = "linux")]
    let synced = rustix::fs::syncfs(folder);
    #[cfg(not(target_os = "linux"))]
    let synced = rustix::fs::fsync(folder);
    synced.map_err(|errno| ShelfError::io("write", folder.path(), errno))
}

/// Converts a time to seconds since 1970.
pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
