//! Implements the engine's `Packages` port: turns the needs of a run into layers to mount.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use belljar_analysis::imports::{Found, Registry, Requirement, Resolver, Settings as NameSettings};
use belljar_engine::Fault;
use belljar_engine::language::Language;
use belljar_engine::packages::{self, Cache, Needs, Packages, PackagesError, Prepared, Progress, Stock};
use belljar_engine::provider::{BoxFuture, Provider};

use crate::interpreter::{Interpreter, Interpreters};
use crate::memo::Memo;
use crate::order::{Order, Resolved};
use crate::popular::{Habit, Popular};
use crate::question::{self, Listed};
use crate::registries::Registries;
use crate::shelf::{
    Bounds, Caches, Digest, Flights, Held, Obtained, Scope, SharedCache, Shelf, ShelfError, Tell, Weight,
};
use crate::site;
use crate::tally::Tally;
use crate::tools::Tools;
use crate::workshop::Workshop;

/// How long an answer is kept in memory. Its layers stay on disk for at least that long.
const MOMENT: Duration = Duration::from_secs(300);

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
    pub bounds: Bounds,
    /// Maximum size of all installer caches, in bytes.
    pub cache_bytes: u64,
    /// A cache shared between machines.
    pub shared_cache: Option<SharedCache>,
}

/// Finds installers and registries; called before the first installation.
pub type Equip = Box<dyn Fn() -> (Registries, Tools) + Send + Sync>;

/// Makes packages available to runs.
pub struct Library {
    pub(crate) settings: Settings,
    provider: Arc<dyn Provider>,
    equip: Equip,
    workshop: OnceLock<Workshop>,
    tell: Tell,
    shelf: OnceLock<Result<Shelf, ShelfError>>,
    interpreters: Interpreters,
    memo: Memo<Ready>,
    pub(crate) resolving: Flights<Result<Resolved, PackagesError>>,
    pub(crate) layers: Flights<Result<Obtained, PackagesError>>,
    popular: Popular,
    pub(crate) tally: Tally,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("folder", &self.settings.folder).finish_non_exhaustive()
    }
}

/// The result of preparing packages, and the import pattern that it serves.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    pub(crate) prepared: Prepared,
    pub(crate) habit: Option<Habit>,
    /// Leases of the layers while they are collected; the result keeps them.
    pub(crate) held: Vec<Held>,
    /// Number of package layers.
    count: usize,
}

/// The packages that a run needs from one registry.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Imports of the code.
    pub(crate) found: Found,
    /// Packages named by the request.
    pub(crate) given: Listed,
    /// Packages named by the profile, if they go into a layer of their own.
    pub(crate) profile: Vec<Requirement>,
}

impl Asked {
    fn is_empty(&self) -> bool {
        self.given.requirements.is_empty()
            && self.profile.is_empty()
            && self.found.imports.is_empty()
            && self.found.declared.is_empty()
    }
}

impl Ready {
    /// Returns the answer for later callers, which find the packages installed.
    fn known(self) -> Self {
        let cache = if self.prepared.cache == Cache::None { Cache::None } else { Cache::Hit };
        Self { prepared: Prepared { cache, install: Duration::ZERO, ..self.prepared }, ..self }
    }
}

impl From<ShelfError> for PackagesError {
    fn from(error: ShelfError) -> Self {
        match error.fault() {
            Fault::Caller => Self::Unresolvable(error.to_string()),
            Fault::Capacity | Fault::Host => Self::Host(error.to_string()),
        }
    }
}

impl Packages for Library {
    fn prepare<'a>(
        &'a self,
        needs: Needs<'a>,
        progress: &'a mut dyn Progress,
    ) -> BoxFuture<'a, Result<Prepared, PackagesError>> {
        if question::is_plain(&needs) {
            return Box::pin(std::future::ready(Ok(Prepared::default())));
        }
        Box::pin(async move {
            let question = asked(&needs);
            let (prepared, ready) = match self.memo.get(&question) {
                Some(ready) => {
                    self.tally.known(ready.count);
                    (ready.prepared.clone(), ready)
                }
                None => {
                    let ready = self.look(needs, progress).await.inspect_err(|_| self.tally.failed())?;
                    (ready.prepared.clone(), self.memo.put(question, ready.known()))
                }
            };
            let frequent = ready.habit.as_ref().map(|habit| self.popular.used(habit));
            Ok(Prepared { frequent_imports: frequent.unwrap_or_default(), ..prepared })
        })
    }

    fn stock(&self) -> BoxFuture<'_, Stock> {
        Box::pin(async {
            let weight = match self.shelf() {
                Ok(shelf) => shelf.weigh().await.unwrap_or_default(),
                Err(_) => Weight::default(),
            };
            self.tally.stock(weight)
        })
    }
}

/// Hashes everything that an answer depends on.
fn asked(needs: &Needs<'_>) -> Digest {
    let image = needs.image.identity();
    let flags = format!("{} {} {}", needs.detect, needs.playground, needs.build);
    let counts = format!("{} {} {}", needs.packages.len(), needs.standing.len(), needs.files.len());
    let language = needs.language.map_or("", |language| language.name);
    let mut parts: Vec<&[u8]> =
        [needs.tenant, &*image, language, flags.as_str(), counts.as_str(), needs.code.unwrap_or_default()]
            .map(str::as_bytes)
            .to_vec();
    parts.extend(needs.packages.iter().chain(needs.standing).map(String::as_bytes));
    for file in needs.files {
        parts.push(file.path.as_bytes());
        // Other files only matter by name.
        let lists = Requirement::of_manifest(&file.path, "").is_some();
        parts.push(if lists { &file.content } else { b"" });
    }
    Digest::of("belljar needs 2", parts)
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
    pub fn new(provider: Arc<dyn Provider>, settings: Settings, equip: Equip, tell: Tell) -> Self {
        Self {
            provider,
            equip,
            workshop: OnceLock::new(),
            tell,
            shelf: OnceLock::new(),
            interpreters: Interpreters::new(settings.folder.join("interpreters")),
            memo: Memo::new(MOMENT),
            resolving: Flights::default(),
            layers: Flights::default(),
            popular: Popular::default(),
            tally: Tally::default(),
            settings,
        }
    }

    /// Waits until pending uploads to the shared cache are done, up to its timeout.
    pub async fn settle(&self) {
        if let Some(Ok(shelf)) = self.shelf.get() {
            shelf.settle().await;
        }
    }

    pub(crate) fn workshop(&self) -> &Workshop {
        self.workshop.get_or_init(|| {
            let (registries, tools) = (self.equip)();
            let folder = &self.settings.folder;
            let caches = Caches::new(folder, self.settings.cache_bytes);
            Workshop::new(Arc::clone(&self.provider), registries, tools, caches, folder.join("installers"))
        })
    }

    pub(crate) fn shelf(&self) -> Result<&Shelf, PackagesError> {
        let opened = self.shelf.get_or_init(|| {
            let Settings { folder, bounds, shared_cache, .. } = &self.settings;
            let shelf = Shelf::open(folder, *bounds, Arc::clone(&self.tell))?;
            Ok(match shared_cache {
                Some(cache) => shelf.sharing(cache.clone()),
                None => shelf,
            })
        });
        opened.as_ref().map_err(|error| error.clone().into())
    }

    /// Falls back to the image without the profile's packages if those are unavailable: code that does not
    /// name them should still run.
    async fn look(&self, needs: Needs<'_>, progress: &mut dyn Progress) -> Result<Ready, PackagesError> {
        match self.find(needs, true, progress).await {
            Err(PackagesError::Host(why)) if !needs.standing.is_empty() => {
                let mut ready = self.find(needs, false, progress).await?;
                ready.prepared.profile_replaced = true;
                let message = format!("the profile's packages are not available: {why}");
                ready.prepared.findings.push(question::finding(
                    message,
                    None,
                    "install them into the image, or fix the cause",
                ));
                Ok(ready)
            }
            found => found,
        }
    }

    async fn find(
        &self,
        needs: Needs<'_>,
        standing: bool,
        progress: &mut dyn Progress,
    ) -> Result<Ready, PackagesError> {
        let mut ready = Ready::default();
        let (named, found) = off_the_runtime(|| (question::named(&needs, standing), question::found(&needs)));
        let named = named?;
        let found = found.unwrap_or_else(|finding| {
            ready.prepared.findings.push(*finding);
            Found::default()
        });
        let own = question::registry(&needs);
        let found_of = |registry| if own == Some(registry) { found.clone() } else { Found::default() };
        let python = Asked { found: found_of(Registry::Pypi), given: named.python, profile: named.profile };
        if !python.is_empty() {
            Box::pin(self.python_layers(&needs, python, progress, &mut ready)).await?;
        }
        let npm = Asked { found: found_of(Registry::Npm), given: named.npm, profile: Vec::new() };
        if !npm.is_empty() {
            Box::pin(self.npm_layer(&needs, npm, progress, &mut ready)).await?;
        }
        if ready.prepared.layers.iter().any(|layer| layer.destination != packages::NODE) {
            ready.prepared.layers.push(site::layer(&self.settings.folder)?);
        }
        let held = std::mem::take(&mut ready.held);
        ready.count = held.len();
        ready.prepared.held = Some(Arc::new(held));
        Ok(ready)
    }

    async fn npm_layer(
        &self,
        needs: &Needs<'_>,
        asked: Asked,
        progress: &mut dyn Progress,
        ready: &mut Ready,
    ) -> Result<(), PackagesError> {
        let interpreter = self.interpreter(needs, Registry::Npm).await?;
        let resolver = Resolver::new(Registry::Npm, &self.settings.names);
        let question = question::question(needs, &resolver, asked.found, asked.given, &interpreter)?;
        ready.prepared.findings.extend(question.findings.iter().cloned());
        if question.requirements.is_empty() {
            return Ok(());
        }
        let order = Order {
            needs,
            registry: Registry::Npm,
            interpreter: &interpreter,
            question: &question,
            scope: self.scope(needs.tenant),
            constraints: &[],
        };
        let resolved = self.resolve(&order, progress).await?;
        self.layer(&order, &resolved, packages::NODE, progress, ready).await
    }

    pub(crate) fn scope(&self, tenant: &str) -> Scope {
        if self.settings.shared { Scope::Shared } else { Scope::Tenant(tenant.to_owned()) }
    }

    pub(crate) async fn interpreter(
        &self,
        needs: &Needs<'_>,
        registry: Registry,
    ) -> Result<Arc<Interpreter>, PackagesError> {
        let language = match (registry, needs.language) {
            (Registry::Npm, Some(language)) if question::registry(needs) == Some(registry) => language,
            (Registry::Npm, _) => named("javascript")?,
            (Registry::Pypi, _) => named("python")?,
        };
        self.interpreters.of(self.workshop(), language, needs.image).await
    }
}

fn named(name: &str) -> Result<&'static Language, PackagesError> {
    Language::named(name).map_err(|error| PackagesError::Host(error.to_string()))
}
