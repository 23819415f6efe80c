//! Directory trees that others may have filled, and may be changing: open below, walk, measure, remove, unpack
//! with a budget, lock and hash.
//!
//! Every name is one component, looked up in an open folder. No symlink is followed, and no function leaves
//! the folder that it was given.
//!
//! - [`folder`]: opens, lists and identifies folders.
//! - [`FolderWalk`]: goes down and up again with one open folder, however deep the tree is.
//! - [`remove_tree`], [`measure`]: built on that walk; they end even if a process keeps changing the tree.
//! - [`UnpackTarget`], [`InnerPath`], [`UnpackBudget`], [`check_tar_headers`]: unpack an archive that may be
//!   hostile.
//! - [`StoreFolder`], [`FileLock`], [`StagingDir`], [`ContentDigest`]: a store that several processes share.

#![forbid(unsafe_code)]

mod digest;
mod error;
pub mod folder;
mod lock;
mod measure;
mod path;
mod remove;
mod staging;
mod store_folder;
mod tar_headers;
mod target;
mod walk;

pub use digest::{ContentDigest, Hasher};
pub use error::{FolderError, blocking};
pub use lock::{FileLock, LockMode};
pub use measure::{MeasureLimits, TreeSize, measure};
pub use path::{InnerPath, link_stays_inside};
pub use remove::{Removal, RemovalRules, Unlinked, remove_tree, unlink};
pub use staging::{StagingDir, sweep_staging};
pub use store_folder::{StoreFolder, random_name};
pub use tar_headers::{HeaderError, HeaderLimits, check_tar_headers};
pub use target::{OverBudget, TargetError, UnpackBudget, UnpackMode, UnpackTarget};
pub use walk::FolderWalk;
