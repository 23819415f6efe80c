//! What makes packages available, wired from the configuration and this machine's own tools.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_engine::packages::{Needs, Packages, PackagesError, Prepared, Progress, Stock};
use belljar_engine::provider::{BoxFuture, Provider};
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

/// What makes packages available, with layers in a folder: for this machine's own provider, and for others as they come.
pub(crate) struct Libraries {
    own: Arc<Library>,
    of_own: Arc<dyn Provider>,
    make: Make,
    /// The last one of each name; an administrator may have exchanged it for another.
    others: Mutex<Others>,
}

type Others = BTreeMap<&'static str, (Arc<dyn Provider>, Arc<Library>)>;
type Make = Box<dyn Fn(Arc<dyn Provider>) -> Arc<Library> + Send + Sync>;

impl fmt::Debug for Libraries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Libraries").field("own", &self.own).finish_non_exhaustive()
    }
}

impl Libraries {
    pub(crate) fn new(
        provider: Arc<dyn Provider>,
        folder: PathBuf,
        config: &Config,
        environment: &Environment,
        tell: Tell,
    ) -> Arc<Self> {
        let make = maker(folder, config, environment, tell);
        let own = make(Arc::clone(&provider));
        Arc::new(Self { own, of_own: provider, make, others: Mutex::default() })
    }

    /// The same with layers of this person's own.
    pub(crate) fn own(
        provider: Arc<dyn Provider>,
        config: &Config,
        environment: &Environment,
    ) -> Result<Arc<Self>, Failure> {
        let folder = config.layers.folder(None, environment)?;
        Ok(Self::new(provider, folder, config, environment, warnings()))
    }

    /// Waits until others can have what was made here.
    pub(crate) async fn settle(&self) {
        let others: Vec<_> = self.others().values().map(|(_, library)| Arc::clone(library)).collect();
        for library in others.into_iter().chain([Arc::clone(&self.own)]) {
            library.settle().await;
        }
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Packages for Libraries {
    fn prepare<'a>(
        &'a self,
        needs: Needs<'a>,
        progress: &'a mut dyn Progress,
    ) -> BoxFuture<'a, Result<Prepared, PackagesError>> {
        self.own.prepare(needs, progress)
    }

    fn serving(&self, provider: &Arc<dyn Provider>) -> Option<Arc<dyn Packages>> {
        if Arc::ptr_eq(provider, &self.of_own) {
            return None;
        }
        let mut others = self.others();
        let known = others.get(provider.name()).filter(|(known, _)| Arc::ptr_eq(known, provider));
        let library = match known {
            Some((_, library)) => Arc::clone(library),
            None => {
                let library = (self.make)(Arc::clone(provider));
                others.insert(provider.name(), (Arc::clone(provider), Arc::clone(&library)));
                library
            }
        };
        Some(library)
    }

    /// What lies ready is in one place, whoever made it.
    fn stock(&self) -> BoxFuture<'_, Stock> {
        self.own.stock()
    }
}

/// What makes packages available for one provider, with layers in a folder.
pub(crate) fn library(
    provider: Arc<dyn Provider>,
    folder: PathBuf,
    config: &Config,
    environment: &Environment,
    tell: Tell,
) -> Arc<Library> {
    maker(folder, config, environment, tell)(provider)
}

fn maker(folder: PathBuf, config: &Config, environment: &Environment, tell: Tell) -> Make {
    let settings = Settings {
        folder,
        names: config.dependencies.clone(),
        ttl: environment.resolution_ttl.unwrap_or(config.layers.ttl),
        shared: config.layers.shared,
        bounds: config.layers.bounds,
        cache_bytes: config.layers.cache_bytes,
        shared_cache: config.layers.shared_cache.clone(),
    };
    let home = environment.home.clone();
    Box::new(move |provider| {
        let home = home.clone();
        let equip = move || {
            // Not ours: these are what pip, uv, npm and bun themselves read.
            let registries = Registries::read(|name| std::env::var(name).ok(), home.as_deref());
            (registries, tools(home.as_deref()))
        };
        Arc::new(Library::new(provider, settings.clone(), Box::new(equip), Arc::clone(&tell)))
    })
}

/// The same with layers of this person's own.
pub(crate) fn own_library(
    provider: Arc<dyn Provider>,
    config: &Config,
    environment: &Environment,
) -> Result<Arc<Library>, Failure> {
    let folder = config.layers.folder(None, environment)?;
    Ok(library_in(folder, provider, config, environment))
}

/// What makes packages available, with layers in this folder and notices as warnings.
pub(super) fn library_in(
    folder: PathBuf,
    provider: Arc<dyn Provider>,
    config: &Config,
    environment: &Environment,
) -> Arc<Library> {
    library(provider, folder, config, environment, warnings())
}

fn warnings() -> Tell {
    Arc::new(|notice: &Notice| say::warning(&notice.to_string()))
}
