//! `/v1/volumes` and `/v1/snapshots`: storage that outlives sandboxes. The store records owners and sizes,
//! the engine's `Places` hold the files, and current mounts are tracked here.

mod guard;
mod mounts;
pub(crate) mod snapshots;
pub(crate) mod volumes;

use belljar_engine::places::Places;
use belljar_store::Store;

use crate::error::Error;
pub(crate) use guard::Guard;
pub(crate) use mounts::{Mount, Mounts, mount};

/// Removes what an earlier server left incomplete or unreferenced. Called on startup.
pub(crate) async fn settle(places: &dyn Places, store: &Store) -> Result<(), Error> {
    let unready = store.forget_unready_snapshots().await?.len();
    let (volumes, snapshots) = store.kept().await?;
    let volumes: Vec<_> = volumes.iter().map(ToString::to_string).collect();
    let snapshots: Vec<_> = snapshots.iter().map(ToString::to_string).collect();
    let removed = places.settle(&volumes, &snapshots).await?;
    if unready + removed > 0 {
        tracing::warn!(unready, removed, "removed incomplete volumes and snapshots of an earlier server");
    }
    Ok(())
}
