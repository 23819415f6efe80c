//! The port of the engine: from what a run needs to layers that are there.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use belljar_analysis::imports::{Found, Registry, Requirement, Resolver, Settings as NameSettings};
use belljar_engine::Fault;
use belljar_engine::language::Language;
use belljar_engine::packages::{
    self, Cache, Needs, PackageLayer, Packages, PackagesError, Prepared, Progress, Stock,
};
use belljar_engine::provider::{BoxFuture, Provider};

use crate::interpreter::{Interpreter, Interpreters};
use crate::memo::Memo;
use crate::order::{Order, Resolved};
use crate::popular::{Habit, Popular};
use crate::question;
use crate::registries::Registries;
use crate::shelf::{
    Bounds, Caches, Digest, Flights, Held, Obtained, Origin, Package, Scope, SharedCache, Shelf, ShelfError,
    Tell, Weight,
};
use crate::site;
use crate::tally::Tally;
use crate::tools::Tools;
use crate::workshop::Workshop;

/// How long an answer is kept in memory, and with it its layers on disk.
const MOMENT: Duration = Duration::from_secs(300);

/// What an administrator decides.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where layers and caches of installers are.
    pub folder: PathBuf,
    /// Which names may be installed, and what they mean.
    pub names: NameSettings,
    /// How long a set of names means the same versions.
    pub ttl: Duration,
    /// Whether tenants use each other's layers.
    pub shared: bool,
    /// How much is kept.
    pub bounds: Bounds,
    /// How much installers keep for themselves.
    pub cache_bytes: u64,
    /// A cache that machines share.
    pub shared_cache: Option<SharedCache>,
}

/// Looks for installers and registries; asked when something is to be installed for the first time.
pub type Equip = Box<dyn Fn() -> (Registries, Tools) + Send + Sync>;

/// Makes packages available.
pub struct Library {
    settings: Settings,
    provider: Arc<dyn Provider>,
    equip: Equip,
    workshop: OnceLock<Workshop>,
    tell: Tell,
    shelf: OnceLock<Result<Shelf, ShelfError>>,
    interpreters: Interpreters,
    memo: Memo<Ready>,
    resolving: Flights<Result<Resolved, PackagesError>>,
    pub(crate) layers: Flights<Result<Obtained, PackagesError>>,
    popular: Popular,
    tally: Tally,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("folder", &self.settings.folder).finish_non_exhaustive()
    }
}

/// An answer, and what it was given for.
#[derive(Debug)]
struct Ready {
    prepared: Prepared,
    habit: Option<Habit>,
    /// How many layers of packages it has.
    held: usize,
}

impl Ready {
    /// The same for whoever comes next: what was installed once is there from then on.
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
                    self.tally.known(ready.held);
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

/// All that an answer depends on.
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
        // Of most files only the name counts.
        let lists = Requirement::of_manifest(&file.path, "").is_some();
        parts.push(if lists { &file.content } else { b"" });
    }
    Digest::of("belljar needs 2", parts)
}

impl Library {
    /// Over a provider; nothing is touched before something is asked for.
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

    /// Waits until others can have what was made here, for as long as that may take.
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

    fn shelf(&self) -> Result<&Shelf, PackagesError> {
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

    /// A profile's packages that cannot be had are no reason to refuse code that says nothing of them.
    async fn look(&self, needs: Needs<'_>, progress: &mut dyn Progress) -> Result<Ready, PackagesError> {
        match self.find(needs, true, progress).await {
            Err(PackagesError::Host(why)) if !needs.standing.is_empty() => {
                let mut ready = self.find(needs, false, progress).await?;
                let message = format!("the profile's packages are not there: {why}");
                ready.prepared.findings.push(question::finding(
                    message,
                    None,
                    "install them into the image, or mend that",
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
        let mut ready = Ready { prepared: Prepared::default(), habit: None, held: 0 };
        let mut held = Vec::new();
        let named = question::named(&needs, standing)?;
        let found = question::found(&needs).unwrap_or_else(|finding| {
            ready.prepared.findings.push(*finding);
            Found::default()
        });
        let own = question::registry(&needs);
        for (registry, given) in [(Registry::Pypi, named.python), (Registry::Npm, named.npm)] {
            let found = if own == Some(registry) { found.clone() } else { Found::default() };
            if given.requirements.is_empty() && found.imports.is_empty() && found.declared.is_empty() {
                continue;
            }
            let interpreter = self.interpreter(&needs, registry).await?;
            let resolver = Resolver::new(registry, &self.settings.names);
            let question = question::question(&needs, &resolver, found, given, &interpreter)?;
            ready.prepared.findings.extend(question.findings.iter().cloned());
            // In a folder of somebody's own, any name may be that of a module there.
            if registry == Registry::Pypi && !needs.playground {
                ready.habit = Habit::new(&needs, &question.modules);
            }
            if question.requirements.is_empty() {
                continue;
            }
            let order = Order {
                needs: &needs,
                registry,
                interpreter: &interpreter,
                question: &question,
                scope: self.scope(needs.tenant),
            };
            let layer = self.layer(&order, progress, &mut ready.prepared).await?;
            ready.habit = ready.habit.map(|habit| habit.with(&layer.key()));
            held.push(layer);
        }
        if ready.prepared.layers.iter().any(|layer| layer.destination != packages::NODE) {
            ready.prepared.layers.push(site::layer(&self.settings.folder)?);
        }
        ready.held = held.len();
        ready.prepared.held = Some(Arc::new(held));
        Ok(ready)
    }

    fn scope(&self, tenant: &str) -> Scope {
        if self.settings.shared { Scope::Shared } else { Scope::Tenant(tenant.to_owned()) }
    }

    async fn interpreter(
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

    async fn layer(
        &self,
        order: &Order<'_>,
        progress: &mut dyn Progress,
        prepared: &mut Prepared,
    ) -> Result<Held, PackagesError> {
        let (shelf, started) = (self.shelf()?, Instant::now());
        let resolved = self.resolve(shelf, order, progress).await?;
        let recipe = order.recipe(self.workshop(), resolved.packages.clone())?;
        let obtained = shelf
            .obtain(&self.layers, &recipe.key(), async {
                progress.at(&format!("installing {}", names(&resolved.packages)));
                let stage = shelf.stage()?;
                match order.registry {
                    Registry::Pypi => {
                        let install = self.install_python(shelf, order, &resolved, stage.files(), progress);
                        Box::pin(install).await?;
                    }
                    Registry::Npm => {
                        order.install_npm(self.workshop(), &resolved, stage.files()).await?;
                    }
                }
                Ok(shelf.publish(stage, recipe.clone()).await?)
            })
            .await?;
        let (separator, destination, below) = match order.registry {
            Registry::Pypi => ("==", packages::PYTHON, None),
            Registry::Npm => ("@", packages::NODE, Some("node_modules")),
        };
        let files = obtained.held.files();
        let source = below.map_or_else(|| files.to_owned(), |below| files.join(below));
        prepared.layers.push(PackageLayer { source, destination });
        prepared
            .packages
            .extend(resolved.packages.iter().map(|one| format!("{}{separator}{}", one.name, one.version)));
        self.tally.had(obtained.origin, started.elapsed());
        if obtained.origin == Origin::Built {
            self.workshop().tidy().await;
            (prepared.cache, prepared.install) = (Cache::Miss, prepared.install + started.elapsed());
        } else if prepared.cache == Cache::None {
            prepared.cache = Cache::Hit;
        }
        Ok(obtained.held)
    }

    /// Exact versions: as remembered, else as the registry says now. Whoever asks meanwhile gets the same.
    async fn resolve(
        &self,
        shelf: &Shelf,
        order: &Order<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Resolved, PackagesError> {
        let (question, ttl) = (order.digest(self.workshop())?, self.settings.ttl);
        if let Some(known) = shelf.resolution::<Resolved>(&question, ttl).await.filter(|known| known.fresh) {
            return Ok(known.value);
        }
        let work = async {
            let _turn = shelf.turn(&question).await?;
            let before = shelf.resolution::<Resolved>(&question, ttl).await;
            if let Some(known) = before.as_ref().filter(|known| known.fresh) {
                return Ok(known.value.clone());
            }
            progress.at(&format!(
                "resolving {}",
                order
                    .question
                    .requirements
                    .iter()
                    .map(|(one, _)| one.as_str())
                    .collect::<Vec<_>>()
                    .join(", ")
            ));
            let resolved = match order.registry {
                Registry::Pypi => Box::pin(self.resolve_python(shelf, order, progress)).await,
                Registry::Npm => order.resolve_npm(self.workshop(), shelf).await,
            };
            match (resolved, before) {
                (Ok(resolved), _) => {
                    shelf.remember(&question, &resolved).await?;
                    Ok(resolved)
                }
                // What it meant before will do where nobody can be asked.
                (Err(PackagesError::Host(_)), Some(old)) => Ok(old.value),
                (Err(error), _) => Err(error),
            }
        };
        self.resolving.once(&question, work).await
    }
}

fn named(name: &str) -> Result<&'static Language, PackagesError> {
    Language::named(name).map_err(|error| PackagesError::Host(error.to_string()))
}

fn names(packages: &[Package]) -> String {
    const SHOWN: usize = 6;
    let mut shown: Vec<_> =
        packages.iter().take(SHOWN).map(|one| format!("{} {}", one.name, one.version)).collect();
    if packages.len() > SHOWN {
        shown.push(format!("and {} more", packages.len() - SHOWN));
    }
    shown.join(", ")
}
