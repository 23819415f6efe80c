//! What makes packages available, wired from the configuration and this machine's own tools.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_engine::provider::Provider;
use belljar_layers::shelf::{Notice, Tell};
use belljar_layers::{Library, Registries, Settings, Tools};

use crate::config::Config;
use crate::env::{self, Environment};
use crate::failure::Failure;
use crate::say;

/// Installers on this machine.
pub(crate) fn tools(home: Option<&Path>) -> Tools {
    Tools::find(std::env::var_os(env::PATH).as_deref(), home)
}

/// What makes packages available, with layers in a folder.
pub(crate) fn library(
    provider: Arc<dyn Provider>,
    folder: PathBuf,
    config: &Config,
    environment: &Environment,
    tell: Tell,
) -> Arc<Library> {
    let settings = Settings {
        folder,
        names: config.dependencies.clone(),
        ttl: environment.resolution_ttl.unwrap_or(config.layers.ttl),
        shared: config.layers.shared,
        bounds: config.layers.bounds,
    };
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
    config: &Config,
    environment: &Environment,
) -> Result<Arc<Library>, Failure> {
    let folder = config.layers.folder(None, environment)?;
    let tell = Arc::new(|notice: &Notice| say::warning(&notice.to_string()));
    Ok(library(provider, folder, config, environment, tell))
}
