//! The port of storage that outlives sandboxes on the host's disk: volume folders, snapshots, and host
//! folders that an administrator allows. Owners and quotas are tracked elsewhere; here everything is
//! identified by id only.
//!
//! A volume is a host folder that the owner of volumes names (`AdmittedSandbox::with_volumes`). Providers
//! mount it by descriptor and map its ids like those of a host workspace.

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::provider::BoxFuture;
use crate::sandbox_handle::ByteSource;

/// The result of a storage operation.
pub type StorageFuture<'a, T> = BoxFuture<'a, Result<T, HostStorageError>>;

/// Disk usage of a volume, or why it could not be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeUsage {
    /// Bytes used. Counting stops above the requested bound, so a larger value is a minimum.
    Bytes(u64),
    /// Too many files to count.
    TooMany,
    /// A folder of the volume cannot be read.
    Unreadable,
    /// Folders are moved faster than they can be counted.
    KeepsChanging,
}

impl VolumeUsage {
    /// Returns why the volume exceeds `size_bytes`, or `None` if it does not. A volume that cannot be
    /// measured counts as exceeding.
    pub fn excess_reason(self, size_bytes: u64) -> Option<&'static str> {
        match self {
            Self::Bytes(bytes) if bytes <= size_bytes => None,
            Self::Bytes(_) => Some("exceeds its size"),
            Self::TooMany => Some("has too many files to count"),
            Self::Unreadable => Some("has a folder that its owner cannot read"),
            Self::KeepsChanging => Some("has folders that move faster than they can be counted"),
        }
    }
}

/// The measured disk usage of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeMeasurement {
    /// Disk usage.
    pub usage: VolumeUsage,
    /// Time the measurement took, without waiting for other measurements.
    pub took: Duration,
}

/// A host folder that may be mounted into sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFolder {
    /// Path on the host, without symbolic links.
    pub path: PathBuf,
    /// Whether sandboxes may write to it.
    pub writable: bool,
    /// Tenants that may mount it; all tenants if empty.
    pub tenants: Vec<String>,
}

/// Why a storage operation failed.
#[derive(Debug, Error)]
pub enum HostStorageError {
    /// There is nothing of this name.
    #[error("there is nothing with this name")]
    Missing,
    /// The name is taken.
    #[error("something with this name already exists")]
    Exists,
    /// The name is invalid.
    #[error("'{0}' is not a valid name")]
    Name(String),
    /// The data exceeds the size limit.
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
    /// The host's disk is full.
    #[error("no space left on the disk of the data folder")]
    NoSpace,
    /// The data source failed.
    #[error(transparent)]
    Source(std::io::Error),
    /// A host folder was replaced since the server started.
    #[error("host folder '{0}' was replaced since the server started; restart the server to allow it")]
    Changed(String),
    /// Another I/O error.
    #[error("{what}: {error}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The cause.
        error: std::io::Error,
    },
}

/// Storage on the host's disk that outlives sandboxes.
pub trait HostStorage: Debug + Send + Sync {
    /// Creates the folder of a volume.
    fn make_volume<'a>(&'a self, id: &'a str) -> StorageFuture<'a, ()>;

    /// Removes a volume and its files. The volume is gone from the start, even if removing its files fails.
    fn remove_volume<'a>(&'a self, id: &'a str) -> StorageFuture<'a, ()>;

    /// Returns the folder of a volume.
    fn volume_folder(&self, id: &str) -> PathBuf;

    /// Measures the disk usage of a volume; counting stops above `most` bytes.
    fn measure_volume<'a>(&'a self, id: &'a str, most: u64) -> StorageFuture<'a, VolumeMeasurement>;

    /// Returns the free space on the disk that holds the volumes.
    fn free_bytes(&self) -> StorageFuture<'_, u64>;

    /// Stores a snapshot of up to `most` bytes and returns its size. The snapshot is stored completely or not
    /// at all.
    fn write_snapshot<'a>(&'a self, id: &'a str, source: ByteSource<'a>, most: u64)
    -> StorageFuture<'a, u64>;

    /// Reads a snapshot.
    fn read_snapshot<'a>(&'a self, id: &'a str) -> StorageFuture<'a, ByteSource<'static>>;

    /// Removes a snapshot.
    fn remove_snapshot<'a>(&'a self, id: &'a str) -> StorageFuture<'a, ()>;

    /// Removes every volume and snapshot that is not listed, and returns how many. Called at startup.
    fn remove_unlisted<'a>(
        &'a self,
        volumes: &'a [String],
        snapshots: &'a [String],
    ) -> StorageFuture<'a, usize>;

    /// Returns a host folder by its configured name.
    fn host_folder<'a>(&'a self, name: &'a str) -> StorageFuture<'a, HostFolder>;
}
