//! Mounted volumes, and their last measured sizes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_engine::host_storage::HostStorageError;
use belljar_engine::sandbox::{AdmittedSandbox, VolumeSpec, volume_not_found};
use belljar_store::{TenantName, Volume, VolumeId, VolumeName};
use tokio::sync;

use crate::app_state::AppState;
use crate::error::Error;

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
    fn mount(&self, volume: Volume, writable: bool) -> MountedVolume {
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
    pub(super) fn used_bytes(&self, id: &VolumeId) -> Option<u64> {
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

/// Looks up the volumes and host folders of a sandbox, and marks the volumes as mounted.
pub(crate) async fn mount_volumes(
    world: &AppState,
    tenant: &TenantName,
    admitted: AdmittedSandbox,
) -> Result<(AdmittedSandbox, Vec<MountedVolume>), Error> {
    let (mut folders, mut mounts): (Vec<PathBuf>, Vec<MountedVolume>) = Default::default();
    let _step = world.mounts.lookup_lock.lock().await;
    for spec in &admitted.volumes {
        match &spec.host {
            Some(name) => folders.push(host_folder(world, tenant, spec, name).await?),
            None => {
                let volume = volume(world, tenant, spec).await?;
                folders.push(world.places.volume_folder(volume.id.as_str()));
                mounts.push(world.mounts.mount(volume, !spec.read_only));
            }
        }
    }
    let specs = admitted.volumes.clone();
    let folder_of = |wanted: &VolumeSpec| {
        let at = specs.iter().position(|spec| spec == wanted)?;
        folders.get(at).cloned()
    };
    Ok((admitted.with_volumes(folder_of)?, mounts))
}

async fn volume(world: &AppState, tenant: &TenantName, spec: &VolumeSpec) -> Result<Volume, Error> {
    let name: VolumeName = spec.name.as_deref().unwrap_or_default().parse()?;
    Ok(world.store.volume(tenant, &name).await?.ok_or_else(|| volume_not_found(spec))?)
}

/// Returns a host folder. One that is not for this tenant is reported as unknown.
async fn host_folder(
    world: &AppState,
    tenant: &TenantName,
    spec: &VolumeSpec,
    name: &str,
) -> Result<PathBuf, Error> {
    let folder = match world.places.host_folder(name).await {
        Err(HostStorageError::Missing) => return Err(volume_not_found(spec).into()),
        found => found?,
    };
    if !folder.tenants.is_empty() && !folder.tenants.iter().any(|known| known == tenant.as_str()) {
        return Err(volume_not_found(spec).into());
    }
    if !spec.read_only && !folder.writable {
        let message = format!("host folder '{name}' is read-only; set \"read_only\": true");
        return Err(Error::Invalid { field: "volumes", message });
    }
    Ok(folder.path)
}
