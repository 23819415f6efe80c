//! The port of packages: what code needs that its image does not have is made into layers before the code runs.
//!
//! ```text
//! Needs (code, named packages, image) ── Packages::prepare ──▶ Prepared { layers, packages, cache, findings }
//! ```
//!
//! What a package is called, where it comes from and how it is installed is known behind the port. Here are words and bounds.

use std::any::Any;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error as ThisError;

use crate::Error;
use crate::finding::Finding;
use crate::language::Language;
use crate::plan::{Image, InputFile};
use crate::provider::{BoxFuture, Provider};
use crate::request::Dependencies;

/// The most packages that a request or a profile names.
pub const MAX_PACKAGES: usize = 200;
/// The longest name, with version, extras and marker.
pub const MAX_NAME: usize = 1_000;

/// Where the layer with a request's Python packages is mounted.
pub const PYTHON: &str = "/opt/belljar/python";
/// Where the layer with a profile's own Python packages is mounted.
pub const PYTHON_PROFILE: &str = "/opt/belljar/python-profile";
/// Where the folder with [`PYTHON_BOOTSTRAP`] is mounted; the only entry on `PYTHONPATH` that is not the user's.
pub const PYTHON_SITE: &str = "/opt/belljar/site";
/// The `sitecustomize.py` that puts both layers on `sys.path`, behind the standard library.
pub const PYTHON_BOOTSTRAP: &str = include_str!("runners/site.py");
/// Where layers with packages of JavaScript are seen: every module finds it by going up.
pub const NODE: &str = "/node_modules";

/// What was admitted about packages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Whether imports of the code count.
    pub(crate) detect: bool,
    /// What the request names.
    pub(crate) packages: Vec<String>,
    /// What the profile names for everybody.
    pub(crate) standing: Vec<String>,
    /// Whether packages may be built from their sources.
    pub(crate) build: bool,
    /// The code, where the task itself only says where it is.
    pub(crate) code: Option<String>,
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Needs<'a> {
    /// Who it is for.
    pub tenant: &'a str,
    /// Where it will run.
    pub image: &'a Image,
    /// In what the code is written; absent for commands, and for sandboxes that stay.
    pub language: Option<&'static Language>,
    /// Whether what the code and its files say counts.
    pub detect: bool,
    /// The code.
    pub code: Option<&'a str>,
    /// Files that come along: some can be imported, and some list packages.
    pub files: &'a [InputFile],
    /// Whether more files can be imported than those that come along.
    pub playground: bool,
    /// Packages that the request names.
    pub packages: &'a [String],
    /// Packages that the profile names.
    pub standing: &'a [String],
    /// Whether the profile lets packages run code of theirs to be built or set up: in a sandbox without network.
    pub build: bool,
}

/// A folder with packages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PackageLayer {
    /// On the host; nobody writes there any more.
    pub source: PathBuf,
    /// Inside: [`PYTHON`], [`PYTHON_PROFILE`], [`PYTHON_SITE`] or [`NODE`].
    pub destination: &'static str,
}

impl PackageLayer {
    /// Returns where the layer has programs, as `PATH` has it.
    pub fn programs(&self) -> Option<String> {
        match self.destination {
            PYTHON_SITE => None,
            NODE => Some(format!("{NODE}/.bin")),
            folder => Some(format!("{folder}/bin")),
        }
    }
}

/// Where packages came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// They were there.
    Hit,
    /// They had to be installed.
    Miss,
    /// None were needed.
    #[default]
    None,
}

/// What was made available.
#[derive(Debug, Clone, Default)]
pub struct Prepared {
    /// To be mounted.
    pub layers: Vec<PackageLayer>,
    /// With their versions: `numpy==2.1.0`, `lodash@4.17.21`.
    pub packages: Vec<String>,
    /// Where they came from.
    pub cache: Cache,
    /// How long installing took.
    pub install: Duration,
    /// What could not be made available, and is not known to be needed.
    pub findings: Vec<Finding>,
    /// Modules that programs like this one often import, for waiting interpreters to import once they are confined.
    pub frequent_imports: Vec<String>,
    /// The profile's packages are not there as they are locked, so nothing may be imported ahead of time.
    pub profile_replaced: bool,
    /// Keeps the layers from being removed for as long as somebody uses them.
    pub held: Option<Arc<dyn Any + Send + Sync>>,
}

/// What was made available since the start, and what lies ready.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stock {
    /// Layers that were there when they were asked for.
    pub hits: u64,
    /// Layers that came from the cache that machines share.
    pub fetched: u64,
    /// Layers that were installed.
    pub built: u64,
    /// Layers that were to be had from nowhere.
    pub failed: u64,
    /// How long installing took, all of them together.
    pub install: Duration,
    /// Layers on disk.
    pub layers: u64,
    /// Of all their files.
    pub bytes: u64,
}

/// Why packages are not there; the code is not run.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum PackagesError {
    /// There is no such set of packages: a name, a version, a conflict, or nothing that runs here.
    #[error("dependencies: {0}")]
    Unresolvable(String),
    /// Something had to be built, and that failed.
    #[error("dependencies: {0}")]
    BuildFailed(String),
    /// This machine could not do its part.
    #[error("dependencies: {0}")]
    Host(String),
}

/// Hears how far things are.
pub trait Progress: Send {
    /// A line for people: `installing numpy, pandas`.
    fn at(&mut self, what: &str);
}

/// Makes packages available.
pub trait Packages: Debug + Send + Sync {
    /// Gives what is needed, installing it where it is not there yet. Dropping the future gives that up.
    fn prepare<'a>(
        &'a self,
        needs: Needs<'a>,
        progress: &'a mut dyn Progress,
    ) -> BoxFuture<'a, Result<Prepared, PackagesError>>;

    /// Who does that for what runs with this provider, whose images have interpreters of their own; nothing where it is
    /// this very one.
    fn serving(&self, _provider: &Arc<dyn Provider>) -> Option<Arc<dyn Packages>> {
        None
    }

    /// What has been done so far, and what there is.
    fn stock(&self) -> BoxFuture<'_, Stock>;
}

/// Checks how many are named and how long; what the names mean is known behind the port.
pub(crate) fn check_names(field: &'static str, names: &[String]) -> Result<(), Error> {
    if names.len() > MAX_PACKAGES {
        return Err(Error::invalid(field, format!("more than {MAX_PACKAGES}; leave out what others bring")));
    }
    match names.iter().find(|name| name.len() > MAX_NAME || name.trim().is_empty()) {
        Some(name) if name.trim().is_empty() => Err(Error::invalid(field, "has an empty name")),
        Some(_) => Err(Error::invalid(field, format!("has a name of more than {MAX_NAME} bytes"))),
        None => Ok(()),
    }
}

/// What a sandbox that stays is opened with.
pub(crate) fn admit_standing(
    mut given: Dependencies,
    profile: &crate::profile::Profile,
) -> Result<Wanted, Error> {
    if given.detect == Some(true) {
        let message = "there is no code in a sandbox that is opened; name the packages".to_owned();
        return Err(Error::Unsupported { field: "dependencies.detect", message });
    }
    check_names("dependencies.packages", &given.packages)?;
    profile.add_packages_to(&mut given.packages);
    Ok(Wanted {
        detect: false,
        packages: given.packages,
        standing: profile.operators_packages().to_vec(),
        build: profile.build_packages,
        code: None,
    })
}
