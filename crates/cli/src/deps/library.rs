//! Wires the package resolver from the configuration and this machine's installers.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_engine::packages::{
    PackageNeeds, PackageResolver, PackageStats, PackagesError, Progress, ProvidedPackages,
};
use belljar_engine::provider::{BoxFuture, Provider};
use belljar_layers::store::{StoreWarning, WarningSink};
use belljar_layers::{InstallerTools, Library, PackageRegistries, Settings};

use crate::config::Config;
use crate::env::{self, Environment};
use crate::error::CliError;
use crate::say;

/// Finds the installers of this machine.
pub(crate) fn tools(home: Option<&Path>) -> InstallerTools {
    InstallerTools::find(std::env::var_os(env::PATH).as_deref(), home)
}

/// Package resolvers over one layer store: one for this machine's own provider, and others created per
/// provider.
pub(crate) struct ProviderLibraries {
    own: Arc<Library>,
    own_provider: Arc<dyn Provider>,
    make: LibraryFactory,
    /// The latest resolver for each provider name. An administrator may replace a provider by another of the
    /// same name.
    others: Mutex<OtherLibraries>,
}

type OtherLibraries = BTreeMap<&'static str, (Arc<dyn Provider>, Arc<Library>)>;
type LibraryFactory = Box<dyn Fn(Arc<dyn Provider>) -> Arc<Library> + Send + Sync>;

impl fmt::Debug for ProviderLibraries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Libraries").field("own", &self.own).finish_non_exhaustive()
    }
}

impl ProviderLibraries {
    pub(crate) fn new(
        provider: Arc<dyn Provider>,
        folder: PathBuf,
        config: &Config,
        environment: &Environment,
        tell: WarningSink,
    ) -> Arc<Self> {
        let make = library_factory(folder, config, environment, tell);
        let own = make(Arc::clone(&provider));
        Arc::new(Self { own, own_provider: provider, make, others: Mutex::default() })
    }

    /// Creates the resolvers with the user's own layer store.
    pub(crate) fn with_user_store(
        provider: Arc<dyn Provider>,
        config: &Config,
        environment: &Environment,
    ) -> Result<Arc<Self>, CliError> {
        let folder = config.layers.folder(None)?;
        Ok(Self::new(provider, folder, config, environment, warnings()))
    }

    /// Waits until the layers built here are shared with other machines.
    pub(crate) async fn wait_until_shared(&self) {
        let others: Vec<_> = self.others().values().map(|(_, library)| Arc::clone(library)).collect();
        for library in others.into_iter().chain([Arc::clone(&self.own)]) {
            library.wait_for_uploads().await;
        }
    }

    fn others(&self) -> MutexGuard<'_, OtherLibraries> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PackageResolver for ProviderLibraries {
    fn prepare<'a>(
        &'a self,
        needs: PackageNeeds<'a>,
        progress: &'a mut dyn Progress,
    ) -> BoxFuture<'a, Result<ProvidedPackages, PackagesError>> {
        self.own.prepare(needs, progress)
    }

    fn resolver_for(&self, provider: &Arc<dyn Provider>) -> Option<Arc<dyn PackageResolver>> {
        if Arc::ptr_eq(provider, &self.own_provider) {
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

    /// Returns the stock of the layer store, which all resolvers share.
    fn stats(&self) -> BoxFuture<'_, PackageStats> {
        self.own.stats()
    }
}

/// Creates the package resolver of one provider, with layers in `folder`.
pub(crate) fn library(
    provider: Arc<dyn Provider>,
    folder: PathBuf,
    config: &Config,
    environment: &Environment,
    tell: WarningSink,
) -> Arc<Library> {
    library_factory(folder, config, environment, tell)(provider)
}

fn library_factory(
    folder: PathBuf,
    config: &Config,
    environment: &Environment,
    tell: WarningSink,
) -> LibraryFactory {
    let settings = Settings {
        folder,
        names: config.dependencies.clone(),
        ttl: config.layers.ttl,
        shared: config.layers.shared,
        bounds: config.layers.bounds,
        cache_bytes: config.layers.cache_bytes,
        shared_cache: config.layers.shared_cache(),
    };
    let home = environment.home.clone();
    Box::new(move |provider| {
        let home = home.clone();
        let equip = move || {
            // Not belljar's own variables: pip, uv, npm and bun read these themselves.
            let registries = PackageRegistries::read(|name| std::env::var(name).ok(), home.as_deref());
            (registries, tools(home.as_deref()))
        };
        Arc::new(Library::new(provider, settings.clone(), Box::new(equip), Arc::clone(&tell)))
    })
}

/// Creates a package resolver with the user's own layer store.
pub(crate) fn own_library(
    provider: Arc<dyn Provider>,
    config: &Config,
    environment: &Environment,
) -> Result<Arc<Library>, CliError> {
    let folder = config.layers.folder(None)?;
    Ok(library_in(folder, provider, config, environment))
}

/// Creates a package resolver with layers in `folder`, which prints notices as warnings.
pub(super) fn library_in(
    folder: PathBuf,
    provider: Arc<dyn Provider>,
    config: &Config,
    environment: &Environment,
) -> Arc<Library> {
    library(provider, folder, config, environment, warnings())
}

fn warnings() -> WarningSink {
    Arc::new(|notice: &StoreWarning| say::warning(&notice.to_string()))
}
