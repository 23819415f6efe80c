//! The port of packages: installs the packages that code needs and its image lacks into layers, before the
//! code runs.
//!
//! ```text
//! PackageNeeds (code, packages, image) ─ PackageResolver::prepare ─▶ ProvidedPackages { layers, packages, cache, findings }
//! ```
//!
//! Package names, sources and installation are the implementation's business. This module has types and
//! bounds only.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

pub use belljar_model::report::CacheResult;
use thiserror::Error as ThisError;

use crate::finding::Finding;
use crate::language::Language;
pub use crate::package_layer::{
    GO_LIBRARY, MAX_PACKAGES, MAX_REQUIREMENT_BYTES, NODE_MODULES, PYTHON_BOOTSTRAP, PYTHON_LAYER,
    PYTHON_PROFILE_LAYER, PYTHON_SITE_FOLDER, PackageLayer, Progress,
};
use crate::plan::{Image, InputFile};
use crate::provider::{BoxFuture, Provider};

/// The admitted package request of an execution or sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AdmittedPackages {
    /// Whether to detect packages from imports.
    pub(crate) detect: bool,
    /// Packages that the request names.
    pub(crate) packages: Vec<String>,
    /// Packages that the profile names.
    pub(crate) profile_packages: Vec<String>,
    /// Whether packages may be built from source.
    pub(crate) allow_build: bool,
    /// The code, if the task has only its path.
    pub(crate) code: Option<String>,
}

/// Input for resolving packages: the code and files to scan, and the named packages.
#[derive(Debug, Clone, Copy)]
pub struct PackageNeeds<'a> {
    /// The tenant.
    pub tenant: &'a str,
    /// The image that the code will run in.
    pub image: &'a Image,
    /// Language of the code; absent for commands and long-lived sandboxes.
    pub language: Option<&'static Language>,
    /// Whether to detect packages from the code and files.
    pub detect: bool,
    /// The code.
    pub code: Option<&'a str>,
    /// Input files: some can be imported, and some list packages.
    pub files: &'a [InputFile],
    /// Whether the workspace has files that are not in `files`.
    pub has_host_workspace: bool,
    /// Packages that the request names.
    pub packages: &'a [String],
    /// Packages that the profile names.
    pub profile_packages: &'a [String],
    /// Whether packages may run their own build or install code, in a sandbox without network.
    pub allow_build: bool,
    /// Whether the program is built already, so that no library is needed to build it.
    pub is_built: bool,
    /// The open sandbox in which the code will run; `None` if the layers are mounted before anything runs.
    pub open_sandbox: Option<OpenSandboxModules<'a>>,
}

/// Modules that an open sandbox has already.
#[derive(Debug, Clone, Copy)]
pub struct OpenSandboxModules<'a> {
    /// Packages in its layers, with versions. Needs that they meet are not installed; a layer that replaces
    /// theirs contains them in the same versions.
    pub packages: &'a [String],
    /// Names of modules in its workspace, and of those that its programs installed. They are not installed.
    pub modules: &'a [String],
}

impl<'a> PackageNeeds<'a> {
    /// Returns the needs of code without packages.
    pub fn new(tenant: &'a str, image: &'a Image) -> Self {
        Self {
            tenant,
            image,
            language: None,
            detect: false,
            code: None,
            files: &[],
            has_host_workspace: false,
            packages: &[],
            profile_packages: &[],
            allow_build: false,
            is_built: false,
            open_sandbox: None,
        }
    }
}

/// Packages provided for an execution or sandbox.
#[derive(Debug, Clone, Default)]
pub struct ProvidedPackages {
    /// Layers to mount.
    pub layers: Vec<PackageLayer>,
    /// Packages with versions, e.g. `numpy==2.1.0`, `lodash@4.17.21`.
    pub packages: Vec<String>,
    /// Whether they were cached.
    pub cache: CacheResult,
    /// Time spent installing.
    pub install_time: Duration,
    /// Findings about packages that could not be provided and may not be needed.
    pub findings: Vec<Finding>,
    /// Modules that programs like this one often import. Warm children import them after they are confined.
    pub frequent_imports: Vec<String>,
    /// Whether other versions replaced the profile's locked packages; then nothing may be imported ahead of
    /// time.
    pub profile_replaced: bool,
    /// Keeps the layers from being removed while in use.
    pub lease: Option<Arc<dyn Any + Send + Sync>>,
}

/// Package statistics since the start, and the size of the layer store.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PackageStats {
    /// Requested layers found on disk.
    pub hits: u64,
    /// Layers fetched from the shared cache.
    pub fetched: u64,
    /// Layers installed.
    pub built: u64,
    /// Layers that could not be provided.
    pub failed: u64,
    /// Total time spent installing.
    pub install_time: Duration,
    /// Number of layers on disk.
    pub layers: u64,
    /// Total size of all layers on disk, in bytes.
    pub bytes: u64,
}

/// Why packages could not be provided. The code does not run.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum PackagesError {
    /// No set of packages satisfies the request: unknown name or version, a conflict, or nothing for this
    /// platform.
    #[error("dependencies: {0}")]
    Unresolvable(String),
    /// A package failed to build.
    #[error("dependencies: {0}")]
    BuildFailed(String),
    /// The host failed.
    #[error("dependencies: {0}")]
    Host(String),
}

/// Provides packages as layers.
pub trait PackageResolver: Debug + Send + Sync {
    /// Returns the needed packages, installing missing ones. Dropping the future cancels the installation.
    fn prepare<'a>(
        &'a self,
        needs: PackageNeeds<'a>,
        progress: &'a mut dyn Progress,
    ) -> BoxFuture<'a, Result<ProvidedPackages, PackagesError>>;

    /// Returns the implementation to use for a provider whose images have their own interpreters; `None` if
    /// it is this one.
    fn resolver_for(&self, _provider: &Arc<dyn Provider>) -> Option<Arc<dyn PackageResolver>> {
        None
    }

    /// Removes what is cached for a tenant alone. Layers in use stay until they are the least recently used. An
    /// implementation that caches nothing has nothing to remove.
    fn remove_tenant<'a>(&'a self, _tenant: &'a str) -> BoxFuture<'a, Result<(), PackagesError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns package statistics.
    fn stats(&self) -> BoxFuture<'_, PackageStats>;
}
