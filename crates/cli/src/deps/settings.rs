//! `[dependencies]` of the configuration, and the library that it comes to.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_analysis::imports::{Ecosystem, Settings as Names};
use belljar_engine::provider::Provider;
use belljar_engine::quantity::{parse_bytes, parse_millis};
use belljar_layers::shelf::{Bounds, Notice, Tell};
use belljar_layers::{Library, Registries, Settings, Tools};
use serde::Deserialize;

use crate::env::{self, Environment};
use crate::failure::Failure;
use crate::say;

const SIZE: u64 = 10 << 30;
const LAYERS: u64 = 10_000;
const LAYER_SIZE: u64 = 4 << 30;
const TTL: Duration = Duration::from_secs(24 * 3_600);

/// What an administrator says about packages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DependencySpec {
    /// Python's packages.
    python: Ecosystem,
    /// JavaScript's packages.
    npm: Ecosystem,
    /// Whether addresses, paths and repositories may stand in for packages of a registry.
    direct: bool,
    /// Where layers are kept.
    folder: Option<PathBuf>,
    /// How much is kept, such as `10G`.
    size: Option<String>,
    /// How long a set of names means the same versions, such as `24h`.
    ttl: Option<String>,
    /// Whether tenants use each other's layers.
    shared: bool,
}

impl DependencySpec {
    /// Which names mean what.
    pub(crate) fn names(&self) -> Names {
        Names { python: self.python.clone(), npm: self.npm.clone(), direct: self.direct }
    }

    /// Finds what makes no sense.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.size_bytes().map(drop)?;
        self.ttl().map(drop)
    }

    fn size_bytes(&self) -> Result<u64, String> {
        match self.size.as_deref().map(parse_bytes) {
            None => Ok(SIZE),
            Some(Ok(bytes)) if bytes > 0 => Ok(bytes as u64),
            Some(Ok(_)) => Err("size: must be above zero".to_owned()),
            Some(Err(why)) => Err(format!("size: {why}")),
        }
    }

    fn ttl(&self) -> Result<Duration, String> {
        match self.ttl.as_deref().map(parse_millis) {
            None => Ok(TTL),
            Some(Ok(millis)) if millis > 0 => Ok(Duration::from_millis(millis as u64)),
            Some(Ok(_)) => Err("ttl: must be above zero".to_owned()),
            Some(Err(why)) => Err(format!("ttl: {why}")),
        }
    }

    /// Everything, with layers in `folder` where nothing else is said.
    pub(crate) fn admit(&self, folder: &Path) -> Result<Settings, Failure> {
        let wrong = |why: String| Failure::invalid(format!("[dependencies] {why}"));
        let bytes = self.size_bytes().map_err(wrong)?;
        Ok(Settings {
            folder: self.folder.clone().unwrap_or_else(|| folder.to_owned()),
            names: self.names(),
            ttl: self.ttl().map_err(wrong)?,
            shared: self.shared,
            bounds: Bounds { bytes, layers: LAYERS, layer_bytes: LAYER_SIZE.min(bytes) },
        })
    }
}

/// Where layers of this person are.
fn own_folder(environment: &Environment) -> Result<PathBuf, Failure> {
    let caches = environment.cache_home.as_ref().ok_or_else(|| {
        Failure::invalid("no folder for packages: set HOME, XDG_CACHE_HOME or [dependencies] folder")
    })?;
    Ok(caches.join("belljar").join("layers"))
}

/// Installers on this machine.
pub(crate) fn tools(home: Option<&Path>) -> Tools {
    Tools::find(std::env::var_os(env::PATH).as_deref(), home)
}

/// What makes packages available, over a provider.
pub(crate) fn library(
    provider: Arc<dyn Provider>,
    settings: Settings,
    environment: &Environment,
    tell: Tell,
) -> Arc<Library> {
    let home = environment.home.clone();
    let equip = move || {
        // Not ours: these are what pip, uv, npm and bun themselves read.
        let registries = Registries::read(|name| std::env::var(name).ok(), home.as_deref());
        (registries, tools(home.as_deref()))
    };
    Arc::new(Library::new(provider, settings, Box::new(equip), tell))
}

/// The same with layers of this person's own.
pub(crate) fn own_library(
    provider: Arc<dyn Provider>,
    spec: &DependencySpec,
    environment: &Environment,
) -> Result<Arc<Library>, Failure> {
    let settings = spec.admit(&own_folder(environment)?)?;
    let tell = Arc::new(|notice: &Notice| say::warning(&notice.to_string()));
    Ok(library(provider, settings, environment, tell))
}
