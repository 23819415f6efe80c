//! Directory trees that others may have filled, and may be changing: open below, walk, measure and remove.
//!
//! Every name is one component, looked up in an open folder. No symlink is followed, and no function leaves
//! the folder that it was given.
//!
//! - [`folder`]: opens, lists and identifies folders.
//! - [`FolderWalk`]: goes down and up again with one open folder, however deep the tree is.
//! - [`remove_tree`], [`measure`]: built on that walk; they end even if a process keeps changing the tree.

#![forbid(unsafe_code)]

pub mod folder;
mod measure;
mod remove;
mod walk;

pub use measure::{MeasureLimits, TreeSize, measure};
pub use remove::{Removal, RemovalRules, Unlinked, remove_tree, unlink};
pub use walk::FolderWalk;
