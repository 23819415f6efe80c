//! `/v1/volumes` and `/v1/snapshots`: what outlives sandboxes. Whose it is and how large is in the store, the files are
//! behind the engine's port, and what is mounted now is known here.

mod guard;
mod mounts;
pub(crate) mod snapshots;
pub(crate) mod volumes;

use belljar_engine::places::Places;
use belljar_store::Store;

use crate::error::Error;
pub(crate) use guard::Guard;
pub(crate) use mounts::{Mount, Mounts, mount};

/// At the start: what an earlier server did not complete, and what nobody knows any more, goes.
pub(crate) async fn settle(places: &dyn Places, store: &Store) -> Result<(), Error> {
    let unready = store.forget_unready_snapshots().await?.len();
    let (volumes, snapshots) = store.kept().await?;
    let volumes: Vec<_> = volumes.iter().map(ToString::to_string).collect();
    let snapshots: Vec<_> = snapshots.iter().map(ToString::to_string).collect();
    let removed = places.settle(&volumes, &snapshots).await?;
    if unready + removed > 0 {
        tracing::warn!(unready, removed, "what an earlier server left half done was removed");
    }
    Ok(())
}
