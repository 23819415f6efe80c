//! The port of what outlives sandboxes on the host's disk: the folders of volumes, snapshots, and host folders that an
//! administrator allows. Whose they are and how much they may hold is known elsewhere; here they have ids only.

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::living::ByteSource;
use crate::provider::BoxFuture;

/// What comes of asking for something that is kept.
pub type Kept<'a, T> = BoxFuture<'a, Result<T, PlacesError>>;

/// How much a volume holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measured {
    /// So many bytes; where that is more than was asked about, nobody went on counting.
    Bytes(u64),
    /// More files than are counted.
    TooMany,
    /// A folder in it cannot be looked into.
    Unreadable,
    /// Its folders are moved about faster than they can be counted.
    Restless,
}

impl Measured {
    /// Why this is more than a volume may be, where it is. What cannot be counted is too much.
    pub fn beyond(self, size_bytes: u64) -> Option<&'static str> {
        match self {
            Self::Bytes(bytes) if bytes <= size_bytes => None,
            Self::Bytes(_) => Some("holds more than its size"),
            Self::TooMany => Some("holds more files than can be counted"),
            Self::Unreadable => Some("has a folder that its owner may not read"),
            Self::Restless => Some("has folders that are moved faster than they can be counted"),
        }
    }
}

/// What came of measuring a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measurement {
    /// What it holds.
    pub held: Measured,
    /// How long that took, without waiting for others.
    pub took: Duration,
}

/// A host folder that sandboxes may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFolder {
    /// Where it is, without any link on the way.
    pub path: PathBuf,
    /// Whether it may be written.
    pub writable: bool,
    /// Who may name it; everybody where this is empty.
    pub tenants: Vec<String>,
}

/// Why something could not be kept or found.
#[derive(Debug, Error)]
pub enum PlacesError {
    /// There is none.
    #[error("there is nothing of this name")]
    Missing,
    /// There is one already.
    #[error("there is something of this name already")]
    Exists,
    /// No name that anything here has.
    #[error("'{0}' is no name of anything that is kept")]
    Name(String),
    /// More came than may be kept.
    #[error("it takes more than {0} bytes")]
    TooLarge(u64),
    /// No room on the disk.
    #[error("no room on the disk of the data folder")]
    NoSpace,
    /// Where the bytes come from failed.
    #[error(transparent)]
    Source(std::io::Error),
    /// A host folder is no longer the one that was allowed.
    #[error("host folder '{0}' is not the one that was allowed when the server started; start it again")]
    Changed(String),
    /// What the system says besides.
    #[error("{what}: {error}")]
    Io {
        /// What was done.
        what: &'static str,
        /// The answer.
        error: std::io::Error,
    },
}

/// What outlives sandboxes on the host's disk.
pub trait Places: Debug + Send + Sync {
    /// Makes the folder of a volume.
    fn make_volume<'a>(&'a self, id: &'a str) -> Kept<'a, ()>;

    /// Removes a volume and all in it. From the start of this on it is not found any more, even if it cannot be removed.
    fn remove_volume<'a>(&'a self, id: &'a str) -> Kept<'a, ()>;

    /// Where the folder of a volume is.
    fn volume_folder(&self, id: &str) -> PathBuf;

    /// How much a volume holds; counting ends at more than `most`.
    fn measure_volume<'a>(&'a self, id: &'a str, most: u64) -> Kept<'a, Measurement>;

    /// How much room there is where volumes are.
    fn free_bytes(&self) -> Kept<'_, u64>;

    /// Keeps all that a source gives, up to `most` bytes; how many. It is there whole or not at all.
    fn write_snapshot<'a>(&'a self, id: &'a str, source: ByteSource<'a>, most: u64) -> Kept<'a, u64>;

    /// Reads a snapshot.
    fn read_snapshot<'a>(&'a self, id: &'a str) -> Kept<'a, ByteSource<'static>>;

    /// Removes a snapshot.
    fn remove_snapshot<'a>(&'a self, id: &'a str) -> Kept<'a, ()>;

    /// At the start: removes whatever is none of these; how many that were.
    fn settle<'a>(&'a self, volumes: &'a [String], snapshots: &'a [String]) -> Kept<'a, usize>;

    /// A host folder by the name that the administrator gave it.
    fn host_folder<'a>(&'a self, name: &'a str) -> Kept<'a, HostFolder>;
}
