//! Volumes and snapshots.

use serde::Serialize;
use utoipa::ToSchema;

/// A volume to make.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewVolume {
    name: String,
    #[schema(minimum = 1)]
    size_bytes: u64,
}

/// A named place that outlives sandboxes.
#[derive(Serialize, ToSchema)]
pub(crate) struct Volume {
    name: String,
    /// What it may hold. Sandboxes that write more to it are halted until some of it is removed.
    size_bytes: u64,
    /// What it was last seen to hold; null where nobody has looked, or it could not be measured.
    #[schema(required)]
    used_bytes: Option<u64>,
    created: i64,
}

/// Volumes by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct VolumeList {
    volumes: Vec<Volume>,
}

/// A snapshot to make.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewSnapshot {
    label: Option<String>,
}

/// The files of a sandbox, as they were.
#[derive(Serialize, ToSchema)]
pub(crate) struct Snapshot {
    id: String,
    /// What it was made from.
    sandbox: String,
    label: String,
    size_bytes: u64,
    created: i64,
    /// When it was complete; null while it is being made.
    #[schema(required)]
    ready: Option<i64>,
}

/// Snapshots, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct SnapshotList {
    snapshots: Vec<Snapshot>,
}
