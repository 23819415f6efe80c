//! Snapshots: copies of a sandbox's files.

use std::sync::Arc;
use std::time::Duration;

use belljar_engine::host_storage::HostStorageError;
use belljar_engine::plan::WORKSPACE;
use belljar_engine::sandbox_handle::{ArchiveFormat, ArchiveLimits, SandboxHandle};
use belljar_store::{Error as StoreError, Snapshot, SnapshotId, Timestamp};
use tokio::time::timeout;

use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::error::Error;
use crate::sandboxes::live_sandbox::SandboxInUse;
use crate::uncancellable::run_uncancellable;

/// Timeout for creating a snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum size of an archive in addition to the sandbox's disk limit, in bytes.
const ARCHIVE_OVERHEAD_BYTES: u64 = 1 << 20;
/// Maximum number of entries: what the guest packs, plus some margin.
const MAX_ENTRIES: u64 = 250_000;

/// Creates a snapshot of a sandbox's workspace, even if the client disconnects meanwhile.
pub(crate) async fn create(
    state: Arc<AppState>,
    caller: &Caller,
    used: SandboxInUse,
    label: String,
) -> Result<Snapshot, Error> {
    let snapshot = Snapshot {
        tenant: caller.tenant.clone(),
        id: SnapshotId::generate()?,
        sandbox: used.id.clone(),
        label,
        size_bytes: used.admitted.plan.limits.disk_bytes.saturating_add(ARCHIVE_OVERHEAD_BYTES),
        created: Timestamp::now(),
        ready: None,
    };
    let quota = state.disk_quota(caller);
    run_uncancellable(async move { create_snapshot(&state, &used, snapshot, quota).await }).await
}

async fn create_snapshot(
    state: &AppState,
    used: &SandboxInUse,
    mut snapshot: Snapshot,
    quota: u64,
) -> Result<Snapshot, Error> {
    let Ok(_one) = used.snapshot_lock.try_lock() else { return Err(Error::SnapshotInProgress) };
    let step = state.open_disks.lock.lock().await;
    let quota = state.open_disks.left_of(quota, &snapshot.tenant);
    let most = state.store.add_snapshot(snapshot.clone(), quota).await?;
    drop(step);
    let written = tokio::select! {
        written = timeout(SNAPSHOT_TIMEOUT, write(state, used, &snapshot.id, most)) => {
            written.unwrap_or(Err(Error::SnapshotTooSlow))
        }
        () = used.wait_for_end() => Err(used.ended_error()),
    };
    let ready = match written {
        Ok(bytes) => {
            (snapshot.size_bytes, snapshot.ready) = (bytes, Some(Timestamp::now()));
            let at = snapshot.ready.unwrap_or(snapshot.created);
            state
                .store
                .mark_snapshot_ready(&snapshot.tenant, &snapshot.id, bytes, at)
                .await
                .map_err(Error::from)
        }
        Err(error) => Err(error),
    };
    match ready {
        Ok(()) => Ok(snapshot),
        Err(error) => {
            discard(state, &snapshot).await;
            Err(error)
        }
    }
}

async fn write(state: &AppState, used: &SandboxInUse, id: &SnapshotId, most: u64) -> Result<u64, Error> {
    let source = used.living.files().snapshot().await?;
    Ok(state.host_storage.write_snapshot(id.as_str(), source, most).await?)
}

/// Removes a failed snapshot. Anything that cannot be removed now is removed at the next start.
async fn discard(state: &AppState, snapshot: &Snapshot) {
    remove_file(state, &snapshot.id).await;
    match state.store.remove_snapshot(&snapshot.tenant, &snapshot.id).await {
        // Deleted with its tenant.
        Ok(()) | Err(StoreError::NotFound(_)) => {}
        Err(error) => {
            tracing::error!(snapshot = %snapshot.id, %error, "cannot remove the record of a failed snapshot");
        }
    }
}

/// Removes the file of a snapshot, if there is one.
pub(crate) async fn remove_file(state: &AppState, id: &SnapshotId) {
    match state.host_storage.remove_snapshot(id.as_str()).await {
        Ok(()) | Err(HostStorageError::Missing) => {}
        Err(error) => tracing::error!(snapshot = %id, %error, "cannot remove a snapshot's file now"),
    }
}

/// Removes a snapshot, even if the client disconnects meanwhile.
pub(crate) async fn remove(state: Arc<AppState>, caller: Caller, id: String) -> Result<(), Error> {
    run_uncancellable(async move { remove_snapshot(&state, &caller, &id).await }).await
}

async fn remove_snapshot(state: &AppState, caller: &Caller, id: &str) -> Result<(), Error> {
    let snapshot = find(state, caller, id).await?;
    if snapshot.ready.is_none() {
        return Err(Error::SnapshotInProgress);
    }
    state.store.remove_snapshot(&caller.tenant, &snapshot.id).await?;
    remove_file(state, &snapshot.id).await;
    Ok(())
}

/// Returns a snapshot of the caller's tenant. A malformed id is reported as an unknown one.
pub(crate) async fn find(state: &AppState, caller: &Caller, id: &str) -> Result<Snapshot, Error> {
    let id: SnapshotId = id.parse().map_err(|_| Error::NotFound("snapshot"))?;
    state.store.snapshot(&caller.tenant, &id).await?.ok_or(Error::NotFound("snapshot"))
}

/// Returns the snapshot that a new sandbox starts from.
pub(crate) async fn resolve_snapshot(
    state: &AppState,
    caller: &Caller,
    wanted: Option<&str>,
) -> Result<Option<SnapshotId>, Error> {
    let Some(id) = wanted else { return Ok(None) };
    match find(state, caller, id).await {
        Ok(snapshot) if snapshot.ready.is_some() => Ok(Some(snapshot.id)),
        Ok(_) | Err(Error::NotFound(_)) => {
            let message = format!("no such snapshot: '{}'", id.escape_debug());
            Err(Error::Invalid { field: "snapshot", message })
        }
        Err(error) => Err(error),
    }
}

/// Unpacks a snapshot into a sandbox.
pub(crate) async fn restore(
    state: &AppState,
    living: &dyn SandboxHandle,
    id: &SnapshotId,
    disk_bytes: u64,
) -> Result<(), Error> {
    let source = state.host_storage.read_snapshot(id.as_str()).await?;
    let limits =
        ArchiveLimits { entries: MAX_ENTRIES, bytes: disk_bytes, any_link: true, ..Default::default() };
    living.files().upload_archive(WORKSPACE, ArchiveFormat::Tar, limits, source).await?;
    Ok(())
}
