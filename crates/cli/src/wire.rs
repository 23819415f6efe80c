//! Wires an engine from the configuration: the one place that connects providers, packages and images, and shuts
//! them down in order.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_engine::Engine;
use belljar_engine::images::StoredImages;
use belljar_engine::network::NetworkCeiling;
use belljar_engine::provider::Provider;
use belljar_engine::provider_set::ProviderSet;
use belljar_engine::request::Request;
use belljar_engine::sandbox::SandboxRules;
use belljar_layers::store::{StoreWarning, WarningSink};
use belljar_layers::{
    FindInstallers, InstallerTools, Library, PackageRegistries, ProviderLibraries,
    Settings as LibrarySettings,
};

use crate::config::{BuildCacheSettings, Config};
use crate::env::{self, Environment};
use crate::error::CliError;
use crate::image::{ImageSources, LocalImages};
use crate::os::{self, Interrupts, StartedLauncher};
use crate::{provider_kinds, say};

/// The parts of an engine that are not in the configuration.
pub(crate) struct EngineParts {
    pub(crate) providers: Arc<ProviderSet>,
    pub(crate) packages: Option<Arc<ProviderLibraries>>,
    pub(crate) images: Option<Arc<dyn StoredImages>>,
    pub(crate) network_ceiling: NetworkCeiling,
    pub(crate) sandboxes: SandboxRules,
}

impl EngineParts {
    /// Returns the parts of an engine with providers only.
    pub(crate) fn new(providers: Arc<ProviderSet>) -> Self {
        Self {
            providers,
            packages: None,
            images: None,
            network_ceiling: NetworkCeiling::default(),
            sandboxes: SandboxRules::default(),
        }
    }
}

/// Builds an engine.
pub(crate) fn build_engine(config: &Config, parts: EngineParts) -> Engine {
    let mut engine = Engine::with_providers(parts.providers, config.profiles.clone(), config.ceiling)
        .with_policies(config.policies.clone())
        .with_private_ranges(config.private_ranges.clone())
        .with_network_ceiling(parts.network_ceiling)
        .with_sandbox_rules(parts.sandboxes)
        .with_artifact_limits(config.artifacts)
        .with_result_limit(config.result_bytes);
    if let Some(packages) = parts.packages {
        engine = engine.with_packages(packages);
    }
    if let Some(images) = parts.images {
        engine = engine.with_images(images);
    }
    engine
}

/// The engine of a command, and the images that it can pull.
pub(crate) struct WiredEngine<'a> {
    pub(crate) engine: Arc<Engine>,
    /// The user's image store. Providers other than this machine's own pull images themselves.
    images: Option<Arc<LocalImages>>,
    config: &'a Config,
    environment: &'a Environment,
}

impl WiredEngine<'_> {
    /// Imports or pulls the image of a request, if it is not stored yet.
    pub(crate) async fn ensure_image(&self, request: &Request, quiet: bool) -> Result<(), CliError> {
        let Some(images) = self.images.as_ref().filter(|_| request.image.is_some()) else { return Ok(()) };
        let sources = ImageSources::of(&self.config.images, self.environment);
        images.ensure_stored(request, &sources, quiet).await
    }
}

/// Where the runs of a command take place.
enum ProviderSource {
    /// This machine's own provider, and the configured ones beside it.
    Native(StartedLauncher),
    /// One provider that works on machines that cannot isolate.
    Standalone(Arc<dyn Provider>),
}

/// Returns the name of the provider of a request: the one that it names, else its profile's, else the default.
pub(crate) fn provider_name(request: &Request, config: &Config) -> Result<Option<String>, CliError> {
    let profile = config.profiles.of_request(request.profile.as_deref())?;
    let fallback = config.providers.default_provider.as_deref();
    Ok(profile.provider_of(request.provider.as_deref(), fallback).map(str::to_owned))
}

/// Runs `work` with an engine and shuts the engine down. If all requests name one provider, `named` is its name.
pub(crate) fn with_engine(
    named: Option<&str>,
    config: &Config,
    environment: &Environment,
    work: impl AsyncFnOnce(&WiredEngine<'_>) -> Result<u8, CliError>,
) -> Result<u8, CliError> {
    let source = match provider_kinds::standalone_provider(named, &config.providers)? {
        Some(provider) => ProviderSource::Standalone(provider),
        None => ProviderSource::Native(os::start_launcher()?),
    };
    os::runtime()?.block_on(async {
        let (main, providers, images) = match source {
            ProviderSource::Native(started) => {
                let builds = config.builds.clone();
                let native = started
                    .connect(config.warm, config.sandbox_memory, builds, config.always_proxy, None)
                    .await?
                    .provider();
                let providers = provider_kinds::configured_providers(&native, &config.providers)?;
                (native, providers, Some(LocalImages::of(&config.images, None)))
            }
            ProviderSource::Standalone(provider) => {
                (Arc::clone(&provider), Arc::new(ProviderSet::single(provider)), None)
            }
        };
        let folder = config.layers.folder(None)?;
        let libraries = Arc::new(libraries(main, folder, config, environment, print_warnings()));
        let parts = EngineParts {
            packages: Some(Arc::clone(&libraries)),
            images: images.clone().map(|images| images as _),
            ..EngineParts::new(providers)
        };
        let wired =
            WiredEngine { engine: Arc::new(build_engine(config, parts)), images, config, environment };
        let status = work(&wired).await;
        wired.engine.shut_down().await;
        wait_unless_interrupted(libraries.wait_for_uploads()).await?;
        status
    })
}

/// Waits until layers built here are shared with other machines. An interrupt skips that.
async fn wait_unless_interrupted(uploads: impl Future<Output = ()>) -> Result<(), CliError> {
    let mut interrupts = Interrupts::listen()?;
    tokio::select! {
        () = uploads => {}
        () = interrupts.next() => {}
    }
    Ok(())
}

/// Runs `work` with the package library of this machine's own provider, and shuts the provider down.
pub(crate) fn with_library<T>(
    folder: PathBuf,
    config: &Config,
    environment: &Environment,
    work: impl AsyncFnOnce(&Library) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let started = os::start_launcher()?;
    os::runtime()?.block_on(async {
        let builds = BuildCacheSettings { folder: None, ..config.builds };
        let native = started
            .connect(config.warm, config.sandbox_memory, builds, config.always_proxy, None)
            .await?
            .provider();
        let libraries = libraries(Arc::clone(&native), folder, config, environment, print_warnings());
        let result = work(libraries.main()).await;
        libraries.wait_for_uploads().await;
        native.shut_down().await;
        result
    })
}

/// Creates the package libraries of all providers, with layers in `folder`.
pub(crate) fn libraries(
    main: Arc<dyn Provider>,
    folder: PathBuf,
    config: &Config,
    environment: &Environment,
    warnings: WarningSink,
) -> ProviderLibraries {
    let settings = LibrarySettings {
        folder,
        names: config.dependencies.clone(),
        ttl: config.layers.ttl,
        shared: config.layers.shared,
        bounds: config.layers.bounds,
        cache_bytes: config.layers.cache_bytes,
        shared_cache: config.layers.shared_cache(),
    };
    let home = environment.home.clone();
    let find_installers: FindInstallers = Arc::new(move || {
        // Not belljar's own variables: pip, uv, npm and bun read these themselves.
        let registries = PackageRegistries::read(|name| std::env::var(name).ok(), home.as_deref());
        (registries, installer_tools(home.as_deref()))
    });
    ProviderLibraries::new(main, settings, find_installers, warnings)
}

/// Finds the package installers of this machine.
pub(crate) fn installer_tools(home: Option<&Path>) -> InstallerTools {
    InstallerTools::find(std::env::var_os(env::PATH).as_deref(), home)
}

fn print_warnings() -> WarningSink {
    Arc::new(|warning: &StoreWarning| say::warning(&warning.to_string()))
}
