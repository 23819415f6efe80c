//! Mounted volumes, and their last measured sizes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_store::{Volume, VolumeId};
use tokio::sync;

/// State of volumes that is not in the store.
#[derive(Debug, Default)]
pub(crate) struct VolumeMounts {
    table: Arc<Mutex<VolumeTable>>,
    /// Held while a volume is looked up and mounted, and while one is removed, so that these do not overlap.
    pub(super) lookup_lock: sync::Mutex<()>,
}

type VolumeTable = HashMap<VolumeId, VolumeState>;

#[derive(Debug, Default)]
struct VolumeState {
    mounted: usize,
    written: usize,
    used_bytes: Option<u64>,
}

/// A volume mounted in a sandbox. Dropping it unmounts it.
#[derive(Debug)]
pub(crate) struct MountedVolume {
    table: Arc<Mutex<VolumeTable>>,
    pub(super) volume: Volume,
    pub(super) writable: bool,
}

impl VolumeMounts {
    pub(super) fn mount(&self, volume: Volume, writable: bool) -> MountedVolume {
        let mut table = lock(&self.table);
        let known = table.entry(volume.id.clone()).or_default();
        known.mounted += 1;
        known.written += usize::from(writable);
        MountedVolume { table: Arc::clone(&self.table), volume, writable }
    }

    pub(super) fn is_mounted(&self, id: &VolumeId) -> bool {
        lock(&self.table).get(id).is_some_and(|known| known.mounted > 0)
    }

    /// Returns whether the volume is mounted writable, so that its size can change.
    pub(super) fn is_written(&self, id: &VolumeId) -> bool {
        lock(&self.table).get(id).is_some_and(|known| known.written > 0)
    }

    /// Returns the last measured size.
    pub(crate) fn used_bytes(&self, id: &VolumeId) -> Option<u64> {
        lock(&self.table).get(id)?.used_bytes
    }

    pub(super) fn set_used_bytes(&self, id: &VolumeId, used_bytes: Option<u64>) {
        lock(&self.table).entry(id.clone()).or_default().used_bytes = used_bytes;
    }

    pub(super) fn forget(&self, id: &VolumeId) {
        lock(&self.table).remove(id);
    }
}

impl Drop for MountedVolume {
    fn drop(&mut self) {
        let mut table = lock(&self.table);
        let Some(known) = table.get_mut(&self.volume.id) else { return };
        known.mounted -= 1;
        if self.writable {
            known.written -= 1;
            known.used_bytes = None;
        }
        if known.mounted == 0 && known.used_bytes.is_none() {
            table.remove(&self.volume.id);
        }
    }
}

fn lock(table: &Mutex<VolumeTable>) -> MutexGuard<'_, VolumeTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
