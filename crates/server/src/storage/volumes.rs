//! Volumes: named directories of a tenant that outlive sandboxes.

use std::path::PathBuf;
use std::sync::Arc;

use belljar_engine::host_storage::{HostStorageError, VolumeUsage};
use belljar_engine::sandbox::{AdmittedSandbox, VolumeSpec, volume_not_found};
use belljar_store::{ObjectKind, TenantName, Volume, VolumeId, VolumeName};

use super::mounts::MountedVolume;
use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::error::Error;
use crate::uncancellable::run_uncancellable;

/// Creates a volume, even if the client disconnects meanwhile.
pub(crate) async fn create(state: Arc<AppState>, caller: &Caller, volume: Volume) -> Result<Volume, Error> {
    let quota = state.disk_quota(caller);
    run_uncancellable(async move { create_volume(&state, volume, quota).await }).await
}

/// Creates the directory before the record, so that every recorded volume has a directory.
async fn create_volume(state: &AppState, volume: Volume, quota: u64) -> Result<Volume, Error> {
    state.host_storage.make_volume(volume.id.as_str()).await?;
    let step = state.open_disks.lock.lock().await;
    let quota = state.open_disks.left_of(quota, &volume.tenant);
    let added = state.store.add_volume(volume.clone(), quota).await;
    drop(step);
    if let Err(error) = added {
        state.host_storage.remove_volume(volume.id.as_str()).await?;
        return Err(error.into());
    }
    Ok(volume)
}

/// Removes a volume and its files, even if the client disconnects meanwhile.
pub(crate) async fn remove(state: Arc<AppState>, caller: Caller, name: String) -> Result<(), Error> {
    run_uncancellable(async move { remove_volume(&state, &caller, &name).await }).await
}

async fn remove_volume(state: &AppState, caller: &Caller, name: &str) -> Result<(), Error> {
    let step = state.volume_mounts.lookup_lock.lock().await;
    let volume = find(state, caller, name).await?;
    if state.volume_mounts.is_mounted(&volume.id) {
        return Err(belljar_store::Error::InUse(ObjectKind::Volume).into());
    }
    state.store.remove_volume(&caller.tenant, &volume.name).await?;
    drop(step);
    remove_files(state, &volume.id).await;
    Ok(())
}

/// Removes the files of a volume whose record is deleted. Anything that cannot be removed now is removed at the
/// next start.
pub(crate) async fn remove_files(state: &AppState, id: &VolumeId) {
    state.volume_mounts.forget(id);
    if let Err(error) = state.host_storage.remove_volume(id.as_str()).await {
        tracing::error!(volume = %id, %error, "cannot remove a volume's files now");
    }
}

/// Returns a volume of the caller's tenant. A malformed name is reported as an unknown one.
pub(crate) async fn find(state: &AppState, caller: &Caller, name: &str) -> Result<Volume, Error> {
    let name: VolumeName = name.parse().map_err(|_| Error::NotFound("volume"))?;
    state.store.volume(&caller.tenant, &name).await?.ok_or(Error::NotFound("volume"))
}

/// Returns the size of a volume in bytes, if it is known.
pub(crate) async fn used_bytes(state: &AppState, id: &VolumeId) -> Result<Option<u64>, Error> {
    match state.volume_mounts.used_bytes(id) {
        Some(used) => Ok(Some(used)),
        // Measured by the monitor of the sandbox that mounts it.
        None if state.volume_mounts.is_written(id) => Ok(None),
        None => measure(state, id).await,
    }
}

/// Measures a volume. Only called if no sandbox can write to it, so the result stays valid.
async fn measure(state: &AppState, id: &VolumeId) -> Result<Option<u64>, Error> {
    let used = match state.host_storage.measure_volume(id.as_str(), u64::MAX).await?.usage {
        VolumeUsage::Bytes(bytes) => Some(bytes),
        _ => None,
    };
    if !state.volume_mounts.is_written(id) {
        state.volume_mounts.set_used_bytes(id, used);
    }
    Ok(used)
}

/// Looks up the volumes and host folders of a sandbox, and marks the volumes as mounted.
pub(crate) async fn mount_volumes(
    state: &AppState,
    tenant: &TenantName,
    admitted: AdmittedSandbox,
) -> Result<(AdmittedSandbox, Vec<MountedVolume>), Error> {
    let (mut folders, mut mounts): (Vec<PathBuf>, Vec<MountedVolume>) = Default::default();
    let _step = state.volume_mounts.lookup_lock.lock().await;
    for spec in &admitted.volumes {
        match &spec.host {
            Some(name) => folders.push(host_folder(state, tenant, spec, name).await?),
            None => {
                let volume = volume(state, tenant, spec).await?;
                folders.push(state.host_storage.volume_folder(volume.id.as_str()));
                mounts.push(state.volume_mounts.mount(volume, !spec.read_only));
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

async fn volume(state: &AppState, tenant: &TenantName, spec: &VolumeSpec) -> Result<Volume, Error> {
    let name: VolumeName = spec.name.as_deref().unwrap_or_default().parse()?;
    Ok(state.store.volume(tenant, &name).await?.ok_or_else(|| volume_not_found(spec))?)
}

/// Returns a host folder. One that is not for this tenant is reported as unknown.
async fn host_folder(
    state: &AppState,
    tenant: &TenantName,
    spec: &VolumeSpec,
    name: &str,
) -> Result<PathBuf, Error> {
    let folder = match state.host_storage.host_folder(name).await {
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
