//! The set of providers, and the selection of one for each request.
//!
//! ```text
//! request, else profile, else tenant, else the default ──▶ by name, or `auto`: the strongest ──▶ itself, or a fallback
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

/// Provider name that selects the strongest healthy provider.
pub const AUTO: &str = "auto";
/// Number of consecutive failures after which a provider is not tried for a while.
const TRIES: u32 = 5;
/// How long a failing provider is not tried; then one request may try it.
const REST: Duration = Duration::from_secs(10);

/// A provider and its fallbacks, as an administrator configures them.
#[derive(Debug, Clone)]
pub struct Member {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// Names of the providers that take over while it fails, in order.
    pub instead: Vec<String>,
}

impl Member {
    /// A provider without fallbacks.
    pub fn alone(provider: Arc<dyn Provider>) -> Self {
        Self { provider, instead: Vec::new() }
    }
}

/// A provider of the set, with its capabilities and health.
#[derive(Debug)]
pub struct Post {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) capabilities: Capabilities,
    health: Mutex<Health>,
    /// Dropped with the last request that uses this entry.
    life: watch::Sender<()>,
}

/// Recent failures of a provider and the result of its last self-test.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Number of failures since the last success.
    pub failures: u32,
    /// The last failure.
    pub why: String,
    /// Result of the last self-test, if there was one.
    pub test: Option<Result<(), String>>,
    /// When a request last tried it, while it is failing.
    tried: Option<Instant>,
}

/// The provider selected for a request.
#[derive(Debug, Clone)]
pub struct Chosen {
    pub(crate) post: Arc<Post>,
    /// The failing provider that it replaces, if it is a fallback.
    pub(crate) instead_of: Option<&'static str>,
    /// The other providers, to name those that support a missing capability.
    crew: Weak<Crew>,
}

impl Chosen {
    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.post.capabilities
    }

    /// Refuses a request that needs an unsupported capability, and names the providers that support it.
    pub(crate) fn demand(&self, what: Capability, field: &'static str) -> Result<(), Error> {
        if what.is_in(self.capabilities()) {
            return Ok(());
        }
        let crew = self.crew.upgrade();
        let posts = crew.iter().flat_map(|crew| crew.posts.values());
        let able: Vec<_> =
            posts.filter(|post| what.is_in(&post.capabilities)).map(|post| post.provider.name()).collect();
        let able = if able.is_empty() { "no configured provider".to_owned() } else { able.join(", ") };
        let (name, lack) = what.words();
        let message = format!(
            "provider '{}' {lack} (it does not support '{name}'; supported by: {able})",
            self.post.provider.name()
        );
        Err(Error::Unsupported { field, message })
    }
}

/// The configured providers. They can be replaced at run time; admitted requests keep the provider they were
/// admitted for.
#[derive(Debug)]
pub struct Fleet(RwLock<Arc<Crew>>);

/// A checked set of providers that can replace the current one.
#[derive(Debug)]
pub struct Staged(Crew);

/// A replaced provider, which gets no new requests.
#[derive(Debug)]
pub struct Retired {
    provider: Arc<dyn Provider>,
    life: watch::Receiver<()>,
}

impl Retired {
    /// Waits for the last request that uses the provider, then shuts it down.
    pub async fn end(mut self) {
        // Nothing is ever sent: an error means that the entry was dropped.
        while self.life.changed().await.is_ok() {}
        self.provider.shut_down().await;
    }
}

#[derive(Debug, Default)]
struct Crew {
    posts: BTreeMap<&'static str, Arc<Post>>,
    instead: BTreeMap<&'static str, Vec<String>>,
    usual: String,
    /// All kinds that can be configured, to suggest the right spelling.
    kinds: Vec<&'static str>,
}

impl Fleet {
    /// Creates a set of one provider, which serves every request.
    pub fn of(provider: Arc<dyn Provider>) -> Self {
        let (usual, post) = (provider.name(), Post::new(provider));
        let posts = BTreeMap::from([(usual, Arc::new(post))]);
        let crew = Crew { posts, usual: usual.to_owned(), ..Crew::default() };
        Self(RwLock::new(Arc::new(crew)))
    }

    /// Creates a set of providers. `usual` serves requests that name none; `kinds` are all kinds that can be
    /// configured.
    ///
    /// # Errors
    /// Fails if a name is not that of a provider.
    pub fn new(members: Vec<Member>, usual: &str, kinds: Vec<&'static str>) -> Result<Self, Error> {
        let nobody = Crew { kinds, ..Crew::default() };
        Ok(Self(RwLock::new(Arc::new(Crew::new(members, usual, Some(&nobody))?))))
    }

    /// Prepares a replacement set. A provider that is already in the current set keeps its entry and health.
    ///
    /// # Errors
    /// Fails if a name is not that of a provider.
    pub fn stage(&self, members: Vec<Member>, usual: &str) -> Result<Staged, Error> {
        Ok(Staged(Crew::new(members, usual, Some(&self.crew()))?))
    }

    /// Replaces the current set and returns the providers to shut down.
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

    /// Selects the provider by the first of these names that is given.
    pub(crate) fn choose(&self, names: [Option<&str>; 3]) -> Result<Chosen, Error> {
        self.crew().choose(names.into_iter().flatten().next(), Instant::now())
    }

    /// Checks that a provider has this name, or that `auto` has a candidate.
    ///
    /// # Errors
    /// Fails if there is no such provider.
    pub fn check(&self, name: &str) -> Result<(), Error> {
        self.crew().known(name)
    }

    /// Returns the providers that `auto` may select, which need periodic self-tests.
    pub fn candidates(&self) -> Vec<Arc<Post>> {
        let able = |post: &Arc<Post>| post.capabilities.strength.is_some();
        self.all().into_iter().filter(able).collect()
    }

    /// Returns the default provider, healthy or not.
    pub(crate) fn usual(&self) -> Option<Arc<Post>> {
        let crew = self.crew();
        crew.named(&crew.usual).ok().or_else(|| crew.posts.values().next().cloned())
    }

    /// Returns all providers, ordered by name.
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
                AUTO => return Err(Error::invalid("instead", "must name providers, not 'auto'")),
                name => crew.known(name)?,
            }
        }
        Ok(crew)
    }

    /// Checks that a name is that of a provider, healthy or not.
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
            // Among equals, the first name in order wins.
            let strongest =
                eligible.rev().filter(|post| post.is_well()).max_by_key(|post| post.capabilities.strength);
            return strongest.cloned().ok_or_else(|| {
                let advice = "name one, or see: belljar provider list";
                Error::invalid(
                    "provider",
                    format!("none of the providers that 'auto' could select passes its self-test; {advice}"),
                )
            });
        }
        self.posts.get(name).cloned().ok_or_else(|| self.nobody(name))
    }

    /// Returns the error for a name that is not configured, or not known at all.
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

    /// Returns the name of the provider.
    pub fn name(&self) -> &'static str {
        self.provider.name()
    }

    /// Returns the capabilities of the provider.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Returns the current health of the provider.
    pub fn seen(&self) -> Health {
        self.health().clone()
    }

    /// Runs the provider's self-test until `patience` completes. `auto` does not select a provider that
    /// failed it.
    pub async fn test(&self, patience: impl Future<Output = ()>) -> Result<(), String> {
        let (test, patience) = (pin!(self.provider.check()), pin!(patience));
        let result = match select(test, patience).await {
            Either::Left((result, _)) => result.map_err(|error| error.to_string()),
            Either::Right(_) => Err("the provider did not answer in time".to_owned()),
        };
        self.health().test = Some(result.clone());
        result
    }

    /// Returns whether `auto` may select the provider.
    fn is_well(&self) -> bool {
        let health = self.health();
        health.failures < TRIES && !matches!(health.test, Some(Err(_)))
    }

    /// Returns whether a request may use the provider now. A failing provider gets one request per retry
    /// interval.
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

    /// Records the result of a request. Errors that are the request's fault do not count as failures.
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

/// How strongly a provider isolates programs; `auto` prefers the greater one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Strength {
    /// Whether programs have a kernel of their own.
    own_kernel: bool,
    /// Number of enforced layers.
    layers: usize,
}

impl Strength {
    /// Computes the strength for a kernel and the number of missing layers.
    pub fn new(kernel: Kernel, missing: usize) -> Self {
        let all = crate::layer::Layer::ALL.len();
        Self { own_kernel: kernel == Kernel::Gvisor, layers: all.saturating_sub(missing) }
    }
}

#[cfg(test)]
#[path = "fleet_tests.rs"]
mod tests;
