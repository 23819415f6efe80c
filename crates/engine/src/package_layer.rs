//! Package layers, where they are mounted, and bounds of package names.

use std::path::PathBuf;

use crate::Error;

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

/// Mount point of the layer with Go's compiled standard library, a build cache of the toolchain.
pub const GO_LIBRARY: &str = "/opt/belljar/go-library";

/// A layer of installed packages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PackageLayer {
    /// Folder on the host, complete and read-only.
    pub source: PathBuf,
    /// Mount point in the sandbox: [`PYTHON_LAYER`], [`PYTHON_PROFILE_LAYER`], [`PYTHON_SITE_FOLDER`],
    /// [`NODE_MODULES`] or [`GO_LIBRARY`].
    pub destination: &'static str,
}

impl PackageLayer {
    /// Returns the layer's folder of programs, for `PATH`.
    pub fn bin_folder(&self) -> Option<String> {
        match self.destination {
            PYTHON_SITE_FOLDER | GO_LIBRARY => None,
            NODE_MODULES => Some(format!("{NODE_MODULES}/.bin")),
            folder => Some(format!("{folder}/bin")),
        }
    }
}

/// Receives progress messages.
pub trait Progress: Send {
    /// Reports progress in a line for people, e.g. `installing numpy, pandas`.
    fn report(&mut self, what: &str);
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
