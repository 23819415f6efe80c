//! Storage that outlives sandboxes: volumes and snapshots. The store records owners and sizes, the engine's
//! `HostStorage` holds the files, and current mounts are tracked here.

pub(crate) mod disk_quota;
pub(crate) mod mounts;
pub(crate) mod snapshots;
pub(crate) mod volume_monitor;
pub(crate) mod volumes;

use belljar_engine::host_storage::HostStorage;
use belljar_store::Store;

use crate::error::Error;

/// Removes what an earlier server left incomplete or unreferenced. Called on startup.
pub(crate) async fn remove_leftovers(host_storage: &dyn HostStorage, store: &Store) -> Result<(), Error> {
    let unready = store.delete_unfinished_snapshots().await?.len();
    let (volumes, snapshots) = store.volume_and_snapshot_ids().await?;
    let volumes: Vec<_> = volumes.iter().map(ToString::to_string).collect();
    let snapshots: Vec<_> = snapshots.iter().map(ToString::to_string).collect();
    let removed = host_storage.remove_unlisted(&volumes, &snapshots).await?;
    if unready + removed > 0 {
        tracing::warn!(unready, removed, "removed incomplete volumes and snapshots of an earlier server");
    }
    Ok(())
}
