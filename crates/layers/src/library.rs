//! Implements the engine's `PackageResolver` port: turns the needs of a run into layers to mount.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use belljar_analysis::imports::{
    DetectedImports, PackageRegistry, Requirement, Resolver, ResolverSettings as NameSettings,
};
use belljar_beneath::{ContentDigest, blocking};
use belljar_engine::Fault;
use belljar_engine::language::Language;
use belljar_engine::packages::{
    self, CacheResult, PackageNeeds, PackageResolver, PackageStats, PackagesError, Progress, ProvidedPackages,
};
use belljar_engine::provider::{BoxFuture, Provider};

use crate::bootstrap_layer;
use crate::installer_sandbox::InstallerSandbox;
use crate::interpreter::{ImageInterpreter, InterpreterCache};
use crate::layer_request::{LayerRequest, ResolvedPackages};
use crate::metrics::LayerCounters;
use crate::preimport_stats::{ImportPattern, PreimportStats};
use crate::registries::PackageRegistries;
use crate::requirements::{self, PackageList};
use crate::store::{
    InstallerCaches, LayerBounds, LayerLease, LayerScope, LayerStore, LayerStoreError, ObtainedLayer,
    SharedCache, SingleFlight, StoreUsage, WarningSink,
};
use crate::tools::InstallerTools;
use crate::ttl_cache::TtlCache;

/// How long an answer is kept in memory. Its layers stay on disk for at least that long.
const ANSWER_TTL: Duration = Duration::from_secs(300);

/// Package settings of the administrator.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Folder of the layer store and the installer caches.
    pub folder: PathBuf,
    /// Which package names may be installed, and what they map to.
    pub names: NameSettings,
    /// How long a set of requirements keeps resolving to the same versions.
    pub ttl: Duration,
    /// Whether tenants share layers.
    pub shared: bool,
    /// Bounds of the layer store.
    pub bounds: LayerBounds,
    /// Maximum size of all installer caches, in bytes.
    pub cache_bytes: u64,
    /// A cache shared between machines.
    pub shared_cache: Option<SharedCache>,
}

/// Finds installers and registries; called before the first installation.
pub type FindInstallers = Arc<dyn Fn() -> (PackageRegistries, InstallerTools) + Send + Sync>;

/// Makes packages available to runs.
pub struct Library {
    pub(crate) settings: Settings,
    provider: Arc<dyn Provider>,
    find_installers: FindInstallers,
    installer_sandbox: OnceLock<InstallerSandbox>,
    warnings: WarningSink,
    store: OnceLock<Result<LayerStore, LayerStoreError>>,
    interpreters: InterpreterCache,
    answers: TtlCache<PreparedPackages>,
    pub(crate) resolving: SingleFlight<Result<ResolvedPackages, PackagesError>>,
    pub(crate) layers: SingleFlight<Result<ObtainedLayer, PackagesError>>,
    preimport_stats: PreimportStats,
    pub(crate) counters: LayerCounters,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("folder", &self.settings.folder).finish_non_exhaustive()
    }
}

/// The result of preparing packages, and the import pattern that it serves.
#[derive(Debug, Default)]
pub(crate) struct PreparedPackages {
    pub(crate) prepared: ProvidedPackages,
    pub(crate) import_pattern: Option<ImportPattern>,
    /// Leases of the layers while they are collected; the result keeps them.
    pub(crate) held: Vec<LayerLease>,
    /// Number of package layers.
    layer_count: usize,
}

/// The packages that a run needs from one registry.
#[derive(Debug)]
pub(crate) struct RegistryNeeds {
    /// Imports of the code.
    pub(crate) found: DetectedImports,
    /// Packages named by the request.
    pub(crate) given: PackageList,
    /// Packages named by the profile, if they go into a layer of their own.
    pub(crate) profile: Vec<Requirement>,
}

impl RegistryNeeds {
    fn is_empty(&self) -> bool {
        self.given.requirements.is_empty()
            && self.profile.is_empty()
            && self.found.imports.is_empty()
            && self.found.declared.is_empty()
    }
}

impl PreparedPackages {
    /// Returns the answer for later callers, which find the packages installed.
    fn for_later_callers(self) -> Self {
        let cache =
            if self.prepared.cache == CacheResult::None { CacheResult::None } else { CacheResult::Hit };
        Self { prepared: ProvidedPackages { cache, install_time: Duration::ZERO, ..self.prepared }, ..self }
    }
}

impl From<LayerStoreError> for PackagesError {
    fn from(error: LayerStoreError) -> Self {
        match error.fault() {
            Fault::Caller => Self::Unresolvable(error.to_string()),
            Fault::Capacity | Fault::Host => Self::Host(error.to_string()),
        }
    }
}

impl PackageResolver for Library {
    fn prepare<'a>(
        &'a self,
        needs: PackageNeeds<'a>,
        progress: &'a mut dyn Progress,
    ) -> BoxFuture<'a, Result<ProvidedPackages, PackagesError>> {
        if requirements::needs_nothing(&needs) {
            return Box::pin(std::future::ready(Ok(ProvidedPackages::default())));
        }
        Box::pin(async move {
            let digest = needs_digest(&needs);
            let (prepared, ready) = match self.answers.get(&digest) {
                Some(ready) => {
                    self.counters.count_hits(ready.layer_count);
                    (ready.prepared.clone(), ready)
                }
                None => {
                    let ready = self
                        .prepare_or_fall_back(needs, progress)
                        .await
                        .inspect_err(|_| self.counters.count_failure())?;
                    (ready.prepared.clone(), self.answers.put(digest, ready.for_later_callers()))
                }
            };
            let frequent = ready.import_pattern.as_ref().map(|habit| self.preimport_stats.count_use(habit));
            Ok(ProvidedPackages { frequent_imports: frequent.unwrap_or_default(), ..prepared })
        })
    }

    fn remove_tenant<'a>(&'a self, tenant: &'a str) -> BoxFuture<'a, Result<(), PackagesError>> {
        self.forget_answers();
        Box::pin(async move {
            let scope = self.scope(tenant);
            if scope == LayerScope::Shared {
                return Ok(());
            }
            let caches = self.installer_caches();
            let (store, owned) = (self.store()?.clone(), scope.clone());
            blocking(move || caches.remove_scope(&owned)).await?;
            Ok(store.remove_scope(scope).await?)
        })
    }

    fn stats(&self) -> BoxFuture<'_, PackageStats> {
        Box::pin(async {
            let weight = match self.store() {
                Ok(store) => store.usage().await.unwrap_or_default(),
                Err(_) => StoreUsage::default(),
            };
            self.counters.stock(weight)
        })
    }
}

/// Hashes everything that an answer depends on.
fn needs_digest(needs: &PackageNeeds<'_>) -> ContentDigest {
    let image = needs.image.identity();
    let flags =
        format!("{} {} {} {}", needs.detect, needs.has_host_workspace, needs.allow_build, needs.is_built);
    let (present, modules) =
        needs.open_sandbox.map_or((&[][..], &[][..]), |sandbox| (sandbox.packages, sandbox.modules));
    let lists = [needs.packages, needs.profile_packages, present, modules];
    let counts =
        format!("{:?} {} {}", lists.map(<[_]>::len), needs.files.len(), needs.open_sandbox.is_some());
    let language = needs.language.map_or("", |language| language.name);
    let mut parts: Vec<&[u8]> =
        [needs.tenant, &*image, language, flags.as_str(), counts.as_str(), needs.code.unwrap_or_default()]
            .map(str::as_bytes)
            .to_vec();
    parts.extend(lists.into_iter().flatten().map(String::as_bytes));
    for file in needs.files {
        parts.push(file.path.as_bytes());
        // Other files only matter by name.
        let lists = Requirement::parse_manifest(&file.path, "").is_some();
        parts.push(if lists { &file.content } else { b"" });
    }
    ContentDigest::from_parts("belljar needs 3", parts)
}

/// Reads code and manifests without blocking other tasks of this thread. A single-threaded runtime only runs
/// one caller's tasks.
fn off_the_runtime<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

impl Library {
    /// Creates a library over a provider. Nothing is opened before the first request.
    pub fn new(
        provider: Arc<dyn Provider>,
        settings: Settings,
        find_installers: FindInstallers,
        warnings: WarningSink,
    ) -> Self {
        Self {
            provider,
            find_installers,
            installer_sandbox: OnceLock::new(),
            warnings,
            store: OnceLock::new(),
            interpreters: InterpreterCache::new(settings.folder.join("interpreters")),
            answers: TtlCache::new(ANSWER_TTL),
            resolving: SingleFlight::default(),
            layers: SingleFlight::default(),
            preimport_stats: PreimportStats::default(),
            counters: LayerCounters::default(),
            settings,
        }
    }

    /// Creates a library with the same settings for another provider.
    pub(crate) fn for_provider(&self, provider: &Arc<dyn Provider>) -> Self {
        let (find_installers, warnings) = (Arc::clone(&self.find_installers), Arc::clone(&self.warnings));
        Self::new(Arc::clone(provider), self.settings.clone(), find_installers, warnings)
    }

    /// Returns whether the library installs with this very provider.
    pub(crate) fn serves(&self, provider: &Arc<dyn Provider>) -> bool {
        Arc::ptr_eq(&self.provider, provider)
    }

    /// Waits until pending uploads to the shared cache are done, up to its timeout.
    pub async fn wait_for_uploads(&self) {
        if let Some(Ok(store)) = self.store.get() {
            store.wait_for_uploads().await;
        }
    }

    pub(crate) fn installer_sandbox(&self) -> &InstallerSandbox {
        self.installer_sandbox.get_or_init(|| {
            let (registries, tools) = (self.find_installers)();
            let (caches, folder) = (self.installer_caches(), self.settings.folder.join("installers"));
            InstallerSandbox::new(Arc::clone(&self.provider), registries, tools, caches, folder)
        })
    }

    fn installer_caches(&self) -> InstallerCaches {
        InstallerCaches::new(&self.settings.folder, self.settings.cache_bytes)
    }

    /// Forgets the answers in memory, which keep their layers from being removed.
    pub(crate) fn forget_answers(&self) {
        self.answers.clear();
    }

    pub(crate) fn store(&self) -> Result<&LayerStore, PackagesError> {
        let opened = self.store.get_or_init(|| {
            let Settings { folder, bounds, shared_cache, .. } = &self.settings;
            let store = LayerStore::open(folder, *bounds, Arc::clone(&self.warnings))?;
            Ok(match shared_cache {
                Some(cache) => store.with_shared_cache(cache.clone()),
                None => store,
            })
        });
        opened.as_ref().map_err(|error| error.clone().into())
    }

    /// Falls back to the image without the profile's packages if those are unavailable: code that does not
    /// name them should still run.
    async fn prepare_or_fall_back(
        &self,
        needs: PackageNeeds<'_>,
        progress: &mut dyn Progress,
    ) -> Result<PreparedPackages, PackagesError> {
        match self.prepare_layers(needs, true, progress).await {
            Err(PackagesError::Host(why)) if !needs.profile_packages.is_empty() => {
                let mut ready = self.prepare_layers(needs, false, progress).await?;
                ready.prepared.profile_replaced = true;
                let message = format!("the profile's packages are not available: {why}");
                ready.prepared.findings.push(requirements::finding(
                    message,
                    None,
                    "install them into the image, or fix the cause",
                ));
                Ok(ready)
            }
            found => found,
        }
    }

    async fn prepare_layers(
        &self,
        needs: PackageNeeds<'_>,
        standing: bool,
        progress: &mut dyn Progress,
    ) -> Result<PreparedPackages, PackagesError> {
        let mut ready = PreparedPackages::default();
        let (named, found) = off_the_runtime(|| {
            (requirements::parse_named(&needs, standing), requirements::detect_imports(&needs))
        });
        let named = named?;
        let found = found.unwrap_or_else(|finding| {
            ready.prepared.findings.push(*finding);
            DetectedImports::default()
        });
        let own = requirements::registry(&needs);
        let found_of =
            |registry| if own == Some(registry) { found.clone() } else { DetectedImports::default() };
        let python = RegistryNeeds {
            found: found_of(PackageRegistry::Pypi),
            given: named.python,
            profile: named.profile,
        };
        if !python.is_empty() {
            Box::pin(self.python_layers(&needs, python, progress, &mut ready)).await?;
        }
        let npm =
            RegistryNeeds { found: found_of(PackageRegistry::Npm), given: named.npm, profile: Vec::new() };
        if !npm.is_empty() {
            Box::pin(self.npm_layer(&needs, npm, progress, &mut ready)).await?;
        }
        if ready.prepared.layers.iter().any(|layer| layer.destination != packages::NODE_MODULES) {
            ready.prepared.layers.push(bootstrap_layer::layer(&self.settings.folder)?);
        }
        if requirements::needs_go_library(&needs) {
            Box::pin(self.go_library(&needs, progress, &mut ready)).await;
        }
        let held = std::mem::take(&mut ready.held);
        ready.layer_count = held.len();
        ready.prepared.lease = Some(Arc::new(held));
        Ok(ready)
    }

    async fn npm_layer(
        &self,
        needs: &PackageNeeds<'_>,
        asked: RegistryNeeds,
        progress: &mut dyn Progress,
        ready: &mut PreparedPackages,
    ) -> Result<(), PackagesError> {
        let interpreter = self.interpreter(needs, PackageRegistry::Npm).await?;
        let resolver = Resolver::new(PackageRegistry::Npm, &self.settings.names);
        let mut missing =
            requirements::missing_requirements(needs, &resolver, asked.found, asked.given, &interpreter)?;
        requirements::merge_with_open_sandbox(&mut missing, PackageRegistry::Npm, needs);
        ready.prepared.findings.extend(missing.findings.iter().cloned());
        if missing.requirements.is_empty() {
            return Ok(());
        }
        let request = LayerRequest {
            needs,
            registry: PackageRegistry::Npm,
            interpreter: &interpreter,
            requirements: &missing,
            scope: self.scope(needs.tenant),
            constraints: &[],
        };
        let resolved = self.resolve(&request, progress).await?;
        self.layer(&request, &resolved, packages::NODE_MODULES, progress, ready).await
    }

    pub(crate) fn scope(&self, tenant: &str) -> LayerScope {
        if self.settings.shared { LayerScope::Shared } else { LayerScope::Tenant(tenant.to_owned()) }
    }

    pub(crate) async fn interpreter(
        &self,
        needs: &PackageNeeds<'_>,
        registry: PackageRegistry,
    ) -> Result<Arc<ImageInterpreter>, PackagesError> {
        let language = match (registry, needs.language) {
            (PackageRegistry::Npm, Some(language)) if requirements::registry(needs) == Some(registry) => {
                language
            }
            (PackageRegistry::Npm, _) => language_named("javascript")?,
            (PackageRegistry::Pypi, _) => language_named("python")?,
        };
        self.interpreters.get(self.installer_sandbox(), language, needs.image).await
    }
}

fn language_named(name: &str) -> Result<&'static Language, PackagesError> {
    Language::from_name(name).map_err(|error| PackagesError::Host(error.to_string()))
}
