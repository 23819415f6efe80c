//! Volumes and snapshots.

use serde::Serialize;
use utoipa::ToSchema;

/// A volume to create.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewVolume {
    /// Name of the volume.
    name: String,
    /// Maximum size in bytes.
    #[schema(minimum = 1)]
    size_bytes: u64,
}

/// A named directory that outlives sandboxes.
#[derive(Serialize, ToSchema)]
pub(crate) struct Volume {
    /// Name of the volume.
    name: String,
    /// Maximum size in bytes. Sandboxes that exceed it are halted until files are removed.
    size_bytes: u64,
    /// Size in bytes when it was last measured; null if never measured.
    #[schema(required)]
    used_bytes: Option<u64>,
    /// Creation time in milliseconds since 1970.
    created: i64,
}

/// All volumes of a tenant.
#[derive(Serialize, ToSchema)]
pub(crate) struct VolumeList {
    /// Volumes, sorted by name.
    volumes: Vec<Volume>,
}

/// A snapshot to create.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewSnapshot {
    /// Label for people.
    label: Option<String>,
}

/// A copy of a sandbox's files. Times are in milliseconds since 1970.
#[derive(Serialize, ToSchema)]
pub(crate) struct Snapshot {
    /// Snapshot id.
    id: String,
    /// Id of the sandbox it was taken from.
    sandbox: String,
    /// Label for people.
    label: String,
    /// Size in bytes.
    size_bytes: u64,
    /// Creation time.
    created: i64,
    /// Completion time; null while it is being created.
    #[schema(required)]
    ready: Option<i64>,
}

/// All snapshots of a tenant.
#[derive(Serialize, ToSchema)]
pub(crate) struct SnapshotList {
    /// Snapshots, newest first.
    snapshots: Vec<Snapshot>,
}
