//! Lists layers, measures the store and removes layers beyond its bounds, least recently used first. The time
//! of the last use is the mtime of a lock file, written at most once a minute.

use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use belljar_beneath::folder::unix_seconds;
use belljar_beneath::{StagingDir, StoreFolder};
use serde::Serialize;

use super::disk::DiskStore;
use super::error::LayerStoreError;
use super::manifest::{LayerKey, LayerScope, Manifest};
use super::{LayerBounds, StoreWarning};

/// How long a damaged layer is kept for inspection.
const DAMAGED_RETENTION: Duration = Duration::from_secs(24 * 3_600);
/// How long a resolution is kept: even an outdated one helps if the registry cannot be reached.
const RESOLUTION_RETENTION: Duration = Duration::from_secs(30 * 24 * 3_600);
const MAX_RESOLUTIONS: usize = 10_000;

/// A layer in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayerInfo {
    /// The layer's manifest.
    #[serde(flatten)]
    pub manifest: Manifest,
    /// Last use in seconds since 1970, accurate to about a minute.
    pub used_at: u64,
}

/// Which of the unused layers to remove, least recently used first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prune {
    /// Remove until at most this many bytes are left.
    pub to_bytes: Option<u64>,
    /// Remove until at most this many layers are left.
    pub to_layers: Option<u64>,
    /// Remove all that have not been used for this long.
    pub unused_for: Option<Duration>,
}

/// The result of pruning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PruneResult {
    /// Number of layers.
    pub layers: u64,
    /// Total size of their files, in bytes.
    pub bytes: u64,
}

/// Total size of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Number of layers.
    pub layers: u64,
    /// Total size of their files, in bytes.
    pub bytes: u64,
}

/// A measured size, with the mtime of the folder at that moment.
pub(super) type CachedUsage = ((i64, i128), StoreUsage);

impl DiskStore {
    /// Measures all layers together. Recomputed only after one was added or removed.
    pub(super) fn usage(&self) -> Result<StoreUsage, LayerStoreError> {
        let failed = |errno| LayerStoreError::io("stat", self.layers.path(), errno);
        let stat = rustix::fs::fstat(&self.layers).map_err(failed)?;
        let now = (stat.st_mtime, i128::from(stat.st_mtime_nsec));
        let weighed = || self.cached_usage.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, weight)) = weighed().filter(|(then, _)| *then == now) {
            return Ok(weight);
        }
        let listed = self.list()?;
        let bytes = listed.iter().map(|layer| layer.manifest.bytes).sum();
        let weight = StoreUsage { layers: listed.len() as u64, bytes };
        *weighed() = Some((now, weight));
        Ok(weight)
    }

    /// Lists all layers with a readable manifest, least recently used first.
    pub(super) fn list(&self) -> Result<Vec<LayerInfo>, LayerStoreError> {
        let mut listed = Vec::new();
        for key in self.keys()? {
            listed.extend(self.layer_info(&key)?);
        }
        listed.sort_by_key(|layer| (layer.used_at, layer.manifest.made_at, layer.manifest.key));
        Ok(listed)
    }

    /// Returns the keys of all layers, including those without a readable manifest.
    pub(super) fn keys(&self) -> Result<Vec<LayerKey>, LayerStoreError> {
        Ok(self.layers.names()?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    pub(super) fn layer_info(&self, key: &LayerKey) -> Result<Option<LayerInfo>, LayerStoreError> {
        let Some(manifest) = self.manifest(key)? else { return Ok(None) };
        let used = self.locks.stat(&key.to_string())?.and_then(|stat| u64::try_from(stat.st_mtime).ok());
        Ok(Some(LayerInfo { used_at: used.unwrap_or(manifest.made_at), manifest }))
    }

    pub(super) fn prune(&self, which: Prune) -> Result<PruneResult, LayerStoreError> {
        let layers = self.list()?;
        let mut bytes: u64 = layers.iter().map(|layer| layer.manifest.bytes).sum();
        let mut count = layers.len() as u64;
        let unused_since =
            which.unused_for.map(|time| unix_seconds(SystemTime::now()).saturating_sub(time.as_secs()));
        let mut pruned = PruneResult::default();
        for layer in layers {
            let goes = which.to_bytes.is_some_and(|most| bytes > most)
                || which.to_layers.is_some_and(|most| count > most)
                || unused_since.is_some_and(|since| layer.used_at <= since);
            // The name is free at once; the files are removed when the staging directory is dropped.
            if goes && self.move_unused(&layer.manifest.key, StagingDir::new(&self.staging)?.folder())? {
                bytes -= layer.manifest.bytes;
                count -= 1;
                pruned.layers += 1;
                pruned.bytes += layer.manifest.bytes;
            }
        }
        self.remove_old_entries(&self.broken, DAMAGED_RETENTION, usize::MAX)?;
        self.remove_old_entries(&self.resolutions, RESOLUTION_RETENTION, MAX_RESOLUTIONS)?;
        Ok(pruned)
    }

    /// Removes the layers of a scope, except those in use.
    pub(super) fn remove_scope(&self, scope: &LayerScope) -> Result<(), LayerStoreError> {
        for layer in self.list()?.into_iter().filter(|layer| layer.manifest.recipe.scope == *scope) {
            self.move_unused(&layer.manifest.key, StagingDir::new(&self.staging)?.folder())?;
        }
        Ok(())
    }

    /// Removes the least recently used layers beyond the bounds, after a layer was added.
    pub(super) fn enforce_bounds(&self) {
        let LayerBounds { bytes, layers, .. } = self.bounds;
        let pruned = self.prune(Prune { to_bytes: Some(bytes), to_layers: Some(layers), unused_for: None });
        if let Err(error) = pruned {
            (self.warnings)(&StoreWarning::PruneFailed { why: error.to_string() });
        }
    }

    /// Removes entries older than `kept`, and the oldest beyond `most`.
    fn remove_old_entries(
        &self,
        folder: &StoreFolder,
        kept: Duration,
        most: usize,
    ) -> Result<(), LayerStoreError> {
        let mut entries = Vec::new();
        for name in folder.names()? {
            // An entry's mtime may be anything; its ctime is when it was moved here.
            if let Some(stat) = folder.stat(&name)? {
                entries.push((u64::try_from(stat.st_ctime).unwrap_or(0), name));
            }
        }
        entries.sort();
        let too_many = entries.len().saturating_sub(most);
        let since = unix_seconds(SystemTime::now()).saturating_sub(kept.as_secs());
        for (index, (came, name)) in entries.into_iter().enumerate() {
            if index < too_many || came < since {
                folder.remove_tree(&name)?;
            }
        }
        Ok(())
    }
}
