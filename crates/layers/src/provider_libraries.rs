//! The package libraries of a machine's providers, all over one layer store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_engine::packages::{
    PackageNeeds, PackageResolver, PackageStats, PackagesError, Progress, ProvidedPackages,
};
use belljar_engine::provider::{BoxFuture, Provider};

use crate::library::{FindInstallers, Library, Settings};
use crate::store::WarningSink;

/// A library for the main provider, and one for each other provider, created when first needed.
#[derive(Debug)]
pub struct ProviderLibraries {
    main: Library,
    /// The latest library for each provider name. An administrator may replace a provider by another of the
    /// same name.
    others: Mutex<OtherLibraries>,
}

type OtherLibraries = BTreeMap<&'static str, Arc<Library>>;

impl ProviderLibraries {
    /// Creates the library of the main provider. Nothing is opened before the first request.
    pub fn new(
        provider: Arc<dyn Provider>,
        settings: Settings,
        find_installers: FindInstallers,
        warnings: WarningSink,
    ) -> Self {
        let main = Library::new(provider, settings, find_installers, warnings);
        Self { main, others: Mutex::default() }
    }

    /// Returns the library of the main provider.
    pub fn main(&self) -> &Library {
        &self.main
    }

    /// Waits until pending uploads to the shared cache are done, up to its timeout.
    pub async fn wait_for_uploads(&self) {
        let others: Vec<_> = self.others().values().map(Arc::clone).collect();
        for library in others {
            library.wait_for_uploads().await;
        }
        self.main.wait_for_uploads().await;
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
        self.main.prepare(needs, progress)
    }

    fn resolver_for(&self, provider: &Arc<dyn Provider>) -> Option<Arc<dyn PackageResolver>> {
        if self.main.serves(provider) {
            return None;
        }
        let mut others = self.others();
        let known = others.get(provider.name()).filter(|library| library.serves(provider));
        let library = known.cloned().unwrap_or_else(|| Arc::new(self.main.for_provider(provider)));
        others.insert(provider.name(), Arc::clone(&library));
        Some(library)
    }

    fn remove_tenant<'a>(&'a self, tenant: &'a str) -> BoxFuture<'a, Result<(), PackagesError>> {
        self.others().values().for_each(|library| library.forget_answers());
        self.main.remove_tenant(tenant)
    }

    /// Returns the stock of the layer store, which all libraries share.
    fn stats(&self) -> BoxFuture<'_, PackageStats> {
        self.main.stats()
    }
}
