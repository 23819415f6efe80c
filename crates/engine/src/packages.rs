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
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use belljar_model::report::CacheResult;
use thiserror::Error as ThisError;

use crate::Error;
use crate::finding::Finding;
use crate::language::Language;
use crate::plan::{Image, InputFile};
use crate::provider::{BoxFuture, Provider};
use crate::request::Dependencies;

/// Maximum number of packages in a request or profile.
pub const MAX_PACKAGES: usize = 200;
/// Maximum length of a requirement, in bytes: name, version, extras and marker.
pub const MAX_REQUIREMENT_BYTES: usize = 1_000;

/// Mount point of the layer with a request's Python packages.
pub const PYTHON_LAYER: &str = "/opt/belljar/python";
/// Mount point of the layer with a profile's Python packages.
pub const PYTHON_PROFILE_LAYER: &str = "/opt/belljar/python-profile";
/// Mount point of the folder with [`PYTHON_BOOTSTRAP`]; the only entry of `PYTHONPATH` that is not the
/// user's.
pub const PYTHON_SITE_FOLDER: &str = "/opt/belljar/site";
/// The `sitecustomize.py` that adds both layers to `sys.path`, after the standard library.
pub const PYTHON_BOOTSTRAP: &str = include_str!("runners/site.py");
/// Mount point of the layer with JavaScript packages: module resolution finds it from every folder.
pub const NODE_MODULES: &str = "/node_modules";

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
}

/// A layer of installed packages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PackageLayer {
    /// Folder on the host, complete and read-only.
    pub source: PathBuf,
    /// Mount point in the sandbox: [`PYTHON_LAYER`], [`PYTHON_PROFILE_LAYER`], [`PYTHON_SITE_FOLDER`] or
    /// [`NODE_MODULES`].
    pub destination: &'static str,
}

impl PackageLayer {
    /// Returns the layer's folder of programs, for `PATH`.
    pub fn bin_folder(&self) -> Option<String> {
        match self.destination {
            PYTHON_SITE_FOLDER => None,
            NODE_MODULES => Some(format!("{NODE_MODULES}/.bin")),
            folder => Some(format!("{folder}/bin")),
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

/// Receives progress messages.
pub trait Progress: Send {
    /// Reports progress in a line for people, e.g. `installing numpy, pandas`.
    fn report(&mut self, what: &str);
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

    /// Returns package statistics.
    fn stats(&self) -> BoxFuture<'_, PackageStats>;
}

/// Checks the number and length of package names; the implementation checks their meaning.
pub(crate) fn check_names(field: &'static str, names: &[String]) -> Result<(), Error> {
    if names.len() > MAX_PACKAGES {
        return Err(Error::invalid(
            field,
            format!("more than {MAX_PACKAGES}; leave out packages that others depend on"),
        ));
    }
    match names.iter().find(|name| name.len() > MAX_REQUIREMENT_BYTES || name.trim().is_empty()) {
        Some(name) if name.trim().is_empty() => Err(Error::invalid(field, "has an empty name")),
        Some(_) => {
            Err(Error::invalid(field, format!("has a name of more than {MAX_REQUIREMENT_BYTES} bytes")))
        }
        None => Ok(()),
    }
}

/// Admits the packages of a long-lived sandbox.
pub(crate) fn admit_sandbox_packages(
    mut given: Dependencies,
    profile: &crate::profile::Profile,
) -> Result<AdmittedPackages, Error> {
    if given.detect == Some(true) {
        let message = "a new sandbox has no code to detect packages from; name the packages".to_owned();
        return Err(Error::Unsupported { field: "dependencies.detect", message });
    }
    check_names("dependencies.packages", &given.packages)?;
    profile.add_packages_to(&mut given.packages);
    Ok(AdmittedPackages {
        detect: false,
        packages: given.packages,
        profile_packages: profile.operators_packages().to_vec(),
        allow_build: profile.build_packages,
        code: None,
    })
}
