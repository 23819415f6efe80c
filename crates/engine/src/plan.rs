//! Input to a provider: a plan for a sandbox, and a task to run in it. Only admission can create either.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use belljar_model::sandbox::{DiskStorage, RootAccess};

use crate::artifact::ArtifactLimits;
use crate::gpus::Gpus;
use crate::json_text::Arguments;
use crate::language::Language;
use crate::layer::Layer;
use crate::limits::Limits;
pub use crate::network::Network;
use crate::package_layer::PackageLayer;

/// The folder in which code runs in every sandbox.
pub const WORKSPACE: &str = "/workspace";

/// The image: the read-only root of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// System folders of the host, read-only.
    Host,
    /// An unpacked root in a host folder.
    Folder(PathBuf),
    /// A stored, unpacked image.
    Stored(Arc<StoredImage>),
    /// An image of the provider, by name.
    Named(String),
}

impl Image {
    /// Returns the folder of the root, if it is an unpacked folder on this host.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Host | Self::Named(_) => None,
            Self::Folder(folder) => Some(folder),
            Self::Stored(stored) => Some(&stored.folder),
        }
    }

    /// Returns whether the operator trusts the image's programs. Only these may start outside full
    /// confinement.
    pub fn is_trusted(&self) -> bool {
        match self {
            Self::Host => true,
            Self::Stored(stored) => stored.from_host,
            Self::Folder(_) | Self::Named(_) => false,
        }
    }

    /// Returns a string that distinguishes the image from others.
    pub fn identity(&self) -> Cow<'_, str> {
        match self {
            Self::Host => "host".into(),
            Self::Folder(folder) => folder.to_string_lossy(),
            Self::Stored(stored) => stored.folder.to_string_lossy(),
            Self::Named(name) => name.into(),
        }
    }
}

/// A stored image: unpacked and immutable.
#[derive(Debug, Clone)]
pub struct StoredImage {
    /// Folder of its root. Never reused for another image, not even one of the same name.
    pub folder: PathBuf,
    /// Environment variables that it sets, without `PATH`.
    pub env: BTreeMap<String, String>,
    /// The image's `PATH`.
    pub path: Option<String>,
    /// Whether it is a copy of this host's own files rather than an image from elsewhere.
    pub from_host: bool,
    /// Keeps the image from being removed.
    pub lease: Arc<dyn Any + Send + Sync>,
}

impl PartialEq for StoredImage {
    fn eq(&self, other: &Self) -> bool {
        self.folder == other.folder
    }
}

impl Eq for StoredImage {}

/// A host folder or file mounted into a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Path on the host.
    pub source: PathBuf,
    /// Absolute path in the sandbox.
    pub destination: String,
    /// Whether the program may write there.
    pub writable: bool,
}

/// A file written to the workspace before the program starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputFile {
    /// Path relative to the workspace, without `..` or NUL.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Content.
    pub content: Vec<u8>,
}

/// How to handle output beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputOverflow {
    /// Keep head and tail; the program continues.
    #[default]
    Truncate,
    /// Kill the program.
    Kill,
}

/// A plan for a sandbox.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Plan {
    /// The read-only root.
    pub image: Image,
    /// A host folder to use as the workspace; a fresh one if absent.
    pub host_workspace: Option<PathBuf>,
    /// Additional host folders.
    pub mounts: Vec<Mount>,
    /// Enforced limits.
    pub limits: Limits,
    /// Whether programs may change the root.
    pub root: RootAccess,
    /// Where the disk is.
    pub disk_storage: DiskStorage,
    /// Limits on the artifacts of each task.
    pub artifacts: ArtifactLimits,
    /// Size limit of what `main` returns, as JSON, in bytes.
    pub result_bytes: u64,
    /// Network access.
    pub network: Network,
    /// GPUs of the host.
    pub gpus: Option<Gpus>,
    /// Layers that must be enforced.
    pub require: Vec<Layer>,
    /// The tenant. A warm interpreter never serves two tenants.
    pub tenant: String,
    /// Environment variables that the profile sets for every execution.
    pub env: BTreeMap<String, String>,
    /// Modules that the zygote imports ahead of time: chosen by the operator, never by a tenant.
    pub preimports: Vec<String>,
    /// Modules that warm children import after they are confined.
    pub frequent_imports: Vec<String>,
    /// Package layers, mounted read-only.
    pub package_layers: Vec<PackageLayer>,
    /// Keeps these layers from being removed while the sandbox exists.
    pub package_lease: Option<Arc<dyn Any + Send + Sync>>,
}

/// The program of a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Program {
    /// Code in a language.
    Code {
        /// The language.
        language: &'static Language,
        /// Where the code is: written to a new file in the workspace, or in an existing file of a host
        /// workspace.
        source: CodeSource,
        /// Arguments for `main`, if given.
        arguments: Option<Arguments>,
    },
    /// A program on the sandbox's `PATH`, with its arguments.
    Command(Vec<String>),
}

/// Where the code of a task is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CodeSource {
    /// Code to write to the workspace under this name.
    Text {
        /// File name.
        name: String,
        /// The code.
        code: String,
    },
    /// A file that already exists in the host workspace, at this relative path.
    Existing(String),
}

/// A task to run in a sandbox.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Task {
    /// The program.
    pub program: Program,
    /// Standard input.
    pub stdin: Vec<u8>,
    /// Environment variables, besides the few that every sandbox sets.
    pub env: BTreeMap<String, String>,
    /// Files to write to the workspace first.
    pub files: Vec<InputFile>,
    /// Working directory, absolute.
    pub workdir: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_host_images_are_trusted() {
        let stored = |sealed| {
            let held: Arc<dyn Any + Send + Sync> = Arc::new(());
            let (env, path) = (BTreeMap::new(), None);
            Image::Stored(Arc::new(StoredImage {
                folder: "/i".into(),
                env,
                path,
                from_host: sealed,
                lease: held,
            }))
        };
        assert!(Image::Host.is_trusted() && stored(true).is_trusted());
        for image in [stored(false), Image::Folder("/i".into()), Image::Named("i".to_owned())] {
            assert!(!image.is_trusted(), "{image:?}");
        }
    }
}
