//! The providers that there are, and which of them serves a request.
//!
//! ```text
//! request, else profile, else tenant, else the usual one ──▶ by name, or `auto`: the strongest ──▶ it, or who stands in for it
//! ```

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use tokio::sync::watch;

use crate::outcome::Kernel;
use crate::provider::{Capabilities, Capability, Provider, ProviderError};
use crate::{Error, catalog};

/// Names no provider but the strongest that works.
pub const AUTO: &str = "auto";
/// So many failures in a row, and it is left alone for a while.
const TRIES: u32 = 5;
/// How long that is; then one request may try.
const REST: Duration = Duration::from_secs(10);

/// A provider as an administrator lists it.
#[derive(Debug, Clone)]
pub struct Member {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// Who serves instead while it fails, by name and in this order; nobody where this is empty.
    pub instead: Vec<String>,
}

impl Member {
    /// One for which nobody stands in.
    pub fn alone(provider: Arc<dyn Provider>) -> Self {
        Self { provider, instead: Vec::new() }
    }
}

/// A provider at work.
#[derive(Debug)]
pub struct Post {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) capabilities: Capabilities,
    health: Mutex<Health>,
    /// Ends with the last request that is served here.
    life: watch::Sender<()>,
}

/// How a provider has done lately.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// How often it has failed since it last succeeded.
    pub failures: u32,
    /// Why it last failed.
    pub why: String,
    /// What came of its last self-test, where there was one.
    pub test: Option<Result<(), String>>,
    /// When somebody last tried, while it is left alone.
    tried: Option<Instant>,
}

/// Who serves a request.
#[derive(Debug, Clone)]
pub struct Chosen {
    pub(crate) post: Arc<Post>,
    /// Who should have.
    pub(crate) instead_of: Option<&'static str>,
    /// Who else there was, for those who ask for more than it can do.
    crew: Weak<Crew>,
}

impl Chosen {
    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.post.capabilities
    }

    /// Refuses what it cannot do, and names those who can.
    pub(crate) fn demand(&self, what: Capability, field: &'static str) -> Result<(), Error> {
        if what.is_in(self.capabilities()) {
            return Ok(());
        }
        let crew = self.crew.upgrade();
        let posts = crew.iter().flat_map(|crew| crew.posts.values());
        let able: Vec<_> =
            posts.filter(|post| what.is_in(&post.capabilities)).map(|post| post.provider.name()).collect();
        let able = if able.is_empty() { "nobody here".to_owned() } else { able.join(", ") };
        let (name, lack) = what.words();
        let message = format!(
            "provider '{}' {lack} (it has not the capability '{name}'; who has: {able})",
            self.post.provider.name()
        );
        Err(Error::Unsupported { field, message })
    }
}

/// All of them. They can be exchanged while requests are served: what was admitted before keeps its own.
#[derive(Debug)]
pub struct Fleet(RwLock<Arc<Crew>>);

/// Those who could take over.
#[derive(Debug)]
pub struct Staged(Crew);

/// One who serves nobody new.
#[derive(Debug)]
pub struct Retired {
    provider: Arc<dyn Provider>,
    life: watch::Receiver<()>,
}

impl Retired {
    /// Waits for the last whom it serves, and ends it.
    pub async fn end(mut self) {
        // Nothing is ever sent: this is the end of its post.
        while self.life.changed().await.is_ok() {}
        self.provider.shut_down().await;
    }
}

#[derive(Debug, Default)]
struct Crew {
    posts: BTreeMap<&'static str, Arc<Post>>,
    instead: BTreeMap<&'static str, Vec<String>>,
    usual: String,
    /// All kinds that could be configured, for those who misspell one.
    kinds: Vec<&'static str>,
}

impl Fleet {
    /// One provider, which serves everything.
    pub fn of(provider: Arc<dyn Provider>) -> Self {
        let (usual, post) = (provider.name(), Post::new(provider));
        let posts = BTreeMap::from([(usual, Arc::new(post))]);
        let crew = Crew { posts, usual: usual.to_owned(), ..Crew::default() };
        Self(RwLock::new(Arc::new(crew)))
    }

    /// Several, of the `kinds` that could be configured; `usual` serves whoever names none.
    ///
    /// # Errors
    /// A name that nobody has.
    pub fn new(members: Vec<Member>, usual: &str, kinds: Vec<&'static str>) -> Result<Self, Error> {
        let nobody = Crew { kinds, ..Crew::default() };
        Ok(Self(RwLock::new(Arc::new(Crew::new(members, usual, Some(&nobody))?))))
    }

    /// Others who could take over; whoever is there already keeps its post, and how it has done.
    ///
    /// # Errors
    /// A name that nobody has.
    pub fn stage(&self, members: Vec<Member>, usual: &str) -> Result<Staged, Error> {
        Ok(Staged(Crew::new(members, usual, Some(&self.crew()))?))
    }

    /// Requests from now on are served by these. Those whom they replace are to be ended.
    pub fn set(&self, Staged(crew): Staged) -> Vec<Retired> {
        let crew = Arc::new(crew);
        let before = {
            let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, Arc::clone(&crew))
        };
        let stays = |post: &&Arc<Post>| crew.posts.values().any(|other| Arc::ptr_eq(post, other));
        let gone = before.posts.values().filter(|post| !stays(post));
        gone.map(|post| Retired { provider: Arc::clone(&post.provider), life: post.life.subscribe() })
            .collect()
    }

    /// Finds who serves: the first of these names counts.
    pub(crate) fn choose(&self, names: [Option<&str>; 3]) -> Result<Chosen, Error> {
        self.crew().choose(names.into_iter().flatten().next(), Instant::now())
    }

    /// Whether somebody has this name, or `auto` could choose somebody.
    ///
    /// # Errors
    /// Nobody has.
    pub fn check(&self, name: &str) -> Result<(), Error> {
        self.crew().known(name)
    }

    /// Everybody who could be chosen by `auto`, and so has to be tested from time to time.
    pub fn candidates(&self) -> Vec<Arc<Post>> {
        let able = |post: &Arc<Post>| post.capabilities.strength.is_some();
        self.all().into_iter().filter(able).collect()
    }

    /// Who serves whoever names nobody, well or not.
    pub(crate) fn usual(&self) -> Option<Arc<Post>> {
        let crew = self.crew();
        crew.named(&crew.usual).ok().or_else(|| crew.posts.values().next().cloned())
    }

    /// Everybody, by name.
    pub fn all(&self) -> Vec<Arc<Post>> {
        self.crew().posts.values().cloned().collect()
    }

    fn crew(&self) -> Arc<Crew> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Crew {
    fn new(members: Vec<Member>, usual: &str, before: Option<&Self>) -> Result<Self, Error> {
        let kinds = before.map(|before| before.kinds.clone()).unwrap_or_default();
        let mut crew = Self { usual: usual.to_owned(), kinds, ..Self::default() };
        for Member { provider, instead } in members {
            let name = provider.name();
            let known = before.and_then(|before| before.posts.get(name)).filter(|post| post.is_of(&provider));
            crew.posts.insert(name, known.cloned().unwrap_or_else(|| Arc::new(Post::new(provider))));
            crew.instead.insert(name, instead);
        }
        crew.known(usual)?;
        for name in crew.instead.values().flatten() {
            match name.as_str() {
                AUTO => return Err(Error::invalid("instead", "names providers, and not 'auto'")),
                name => crew.known(name)?,
            }
        }
        Ok(crew)
    }

    /// Whether a name stands for somebody, well or not.
    fn known(&self, name: &str) -> Result<(), Error> {
        let able = |post: &Arc<Post>| post.capabilities.strength.is_some();
        if name == AUTO && self.posts.values().any(able) {
            return Ok(());
        }
        self.named(name).map(drop)
    }

    fn named(&self, name: &str) -> Result<Arc<Post>, Error> {
        if name == AUTO {
            let eligible = self.posts.values().filter(|post| post.capabilities.strength.is_some());
            // The first of equals: names are in order.
            let strongest =
                eligible.rev().filter(|post| post.is_well()).max_by_key(|post| post.capabilities.strength);
            return strongest.cloned().ok_or_else(|| {
                let advice = "name one, or see: belljar provider list";
                Error::invalid(
                    "provider",
                    format!("none that 'auto' could choose passes its self-test; {advice}"),
                )
            });
        }
        self.posts.get(name).cloned().ok_or_else(|| self.nobody(name))
    }

    /// There is no such provider at all, or it is not configured.
    fn nobody(&self, name: &str) -> Error {
        let configured = self.posts.keys().copied().collect::<Vec<_>>().join(", ");
        let what = match name {
            name if self.kinds.is_empty() || self.kinds.contains(&name) => {
                format!("'{}' is not configured", name.escape_debug())
            }
            name => catalog::no_such(name, &self.kinds),
        };
        Error::Unsupported { field: "provider", message: format!("{what}; configured: {configured}") }
    }

    fn choose(self: &Arc<Self>, name: Option<&str>, now: Instant) -> Result<Chosen, Error> {
        let crew = Arc::downgrade(self);
        let first = self.named(name.unwrap_or(&self.usual))?;
        if first.may_try(now) {
            return Ok(Chosen { post: first, instead_of: None, crew });
        }
        let others = self.instead.get(first.provider.name()).into_iter().flatten();
        let mut others = others.filter_map(|name| self.named(name).ok());
        match others.find(|post| post.may_try(now)) {
            Some(post) => Ok(Chosen { post, instead_of: Some(first.provider.name()), crew }),
            None => Err(first.left_alone(now).into()),
        }
    }
}

impl Post {
    fn new(provider: Arc<dyn Provider>) -> Self {
        let (capabilities, life) = (provider.capabilities(), watch::Sender::new(()));
        Self { provider, capabilities, health: Mutex::default(), life }
    }

    fn is_of(&self, provider: &Arc<dyn Provider>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.provider), Arc::as_ptr(provider))
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.provider.name()
    }

    /// What it can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// How it has done lately.
    pub fn seen(&self) -> Health {
        self.health().clone()
    }

    /// Has it test itself; `patience` is what it may take. One that fails is not chosen by `auto`.
    pub async fn test(&self, patience: impl Future<Output = ()>) -> Result<(), String> {
        let (test, patience) = (pin!(self.provider.check()), pin!(patience));
        let result = match select(test, patience).await {
            Either::Left((result, _)) => result.map_err(|error| error.to_string()),
            Either::Right(_) => Err("it does not answer in time".to_owned()),
        };
        self.health().test = Some(result.clone());
        result
    }

    /// Whether `auto` may choose it.
    fn is_well(&self) -> bool {
        let health = self.health();
        health.failures < TRIES && !matches!(health.test, Some(Err(_)))
    }

    /// Whether a request may go there. Of one that keeps failing, one request after each rest finds out.
    fn may_try(&self, now: Instant) -> bool {
        let mut health = self.health();
        if health.failures < TRIES {
            return true;
        }
        let rested = health.tried.is_none_or(|tried| now.saturating_duration_since(tried) >= REST);
        if rested {
            health.tried = Some(now);
        }
        rested
    }

    /// Notes what came of a try. What is wrong with a request says nothing of the provider.
    pub(crate) fn note(&self, error: Option<&ProviderError>) {
        match error {
            None => {
                let mut health = self.health();
                *health = Health { test: health.test.take(), ..Health::default() };
            }
            Some(error @ (ProviderError::Setup { .. } | ProviderError::Lost { .. })) => {
                let mut health = self.health();
                health.failures = health.failures.saturating_add(1);
                health.why = error.to_string();
                health.tried = Some(Instant::now());
            }
            Some(_) => {}
        }
    }

    fn left_alone(&self, now: Instant) -> ProviderError {
        let health = self.health();
        let since = health.tried.map_or(REST, |tried| now.saturating_duration_since(tried));
        let wait = REST.saturating_sub(since).as_secs() + 1;
        ProviderError::Setup {
            step: format!(
                "provider '{}' has failed {} times in a row",
                self.provider.name(),
                health.failures
            ),
            cause: format!("{}; the next try is in {wait} s", health.why),
        }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How well a provider keeps programs in; of two, `auto` takes the greater one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Strength {
    /// Whether programs have a kernel of their own.
    own_kernel: bool,
    /// Layers that are enforced, out of a number that is the same for all.
    layers: usize,
}

impl Strength {
    /// Of one with this kernel, on which so many layers are missing.
    pub fn new(kernel: Kernel, missing: usize) -> Self {
        let all = crate::layer::Layer::ALL.len();
        Self { own_kernel: kernel == Kernel::Gvisor, layers: all.saturating_sub(missing) }
    }
}

#[cfg(test)]
#[path = "fleet_tests.rs"]
mod tests;
