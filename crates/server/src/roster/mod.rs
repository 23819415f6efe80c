//! The providers of this server: built from the configuration in the store, and replaced when it changes.
//!
//! ```text
//! new settings ──▶ fit the schema ──▶ built ──▶ tested ──▶ whole set valid ──▶ stored ──▶ in use
//!                  a failed step changes nothing                                            │
//!                             the old provider is shut down after its last request ◀────────┘
//! ```

mod candidate;
mod start;
mod unusable;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use belljar_engine::Engine;
use belljar_engine::catalog::{self, Catalog, MASK, Settings};
use belljar_engine::fleet::{Member, Post, Retired, Staged};
use belljar_engine::provider::Provider;
use belljar_store::{ProviderContent, ProviderVersion, Sealed, SealingKey, Store, Timestamp};
use futures_util::future::join_all;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

pub(crate) use candidate::{Candidate, Hidden};
pub(crate) use start::load;

use crate::error::Error;
use crate::world::World;

/// Name of the setting in the store that holds the default provider.
const USUAL: &str = "providers.usual";
/// Timeout of the self-test with new settings, which may have to pull an image.
const PROBE: Duration = Duration::from_secs(120);
/// Timeout of a health check.
const LOOK: Duration = Duration::from_secs(10);
/// Interval of health checks of the providers that `auto` may choose.
const ROUND: Duration = Duration::from_secs(60);

/// Providers and their configuration at startup.
#[derive(Debug)]
pub struct Providers {
    /// The known provider kinds.
    pub catalog: Arc<dyn Catalog>,
    /// Configurations from the file and the environment, used for providers that the store does not know.
    pub seeds: BTreeMap<String, Seed>,
    /// Default provider, until an administrator changes it.
    pub usual: String,
    /// Key that encrypts secrets, or the reason it is missing.
    pub key: Result<SealingKey, String>,
}

/// Initial configuration of a provider.
#[derive(Clone, Default, PartialEq)]
pub struct Seed {
    /// Settings of the provider.
    pub settings: Settings,
    /// Providers to use instead while it fails.
    pub instead: Vec<String>,
}

/// Prints only the names of the settings, because values may be secret.
impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.settings.keys().collect();
        f.debug_struct("Seed").field("settings", &names).field("instead", &self.instead).finish()
    }
}

/// The configured providers of a server.
#[derive(Debug)]
pub(crate) struct Roster {
    catalog: Arc<dyn Catalog>,
    key: Result<SealingKey, String>,
    /// Serializes changes.
    turn: Mutex<()>,
    state: RwLock<Arc<State>>,
}

/// The current providers.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) seats: BTreeMap<String, Seat>,
    pub(crate) usual: String,
}

/// A provider with its configuration.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) instead: Vec<String>,
    /// Version of its configuration; `None` if it exists without one.
    pub(crate) version: Option<u32>,
    /// Secrets to mask in its messages.
    pub(crate) hidden: Hidden,
}

impl Roster {
    pub(crate) fn new(catalog: Arc<dyn Catalog>, key: Result<SealingKey, String>) -> Self {
        Self { catalog, key, turn: Mutex::default(), state: RwLock::default() }
    }

    pub(crate) fn catalog(&self) -> &dyn Catalog {
        &*self.catalog
    }

    pub(crate) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Builds a provider from settings, in which a mask stands for the current secret. A masked secret may
    /// only go to the same destination as before: changing the destination requires knowing the secret.
    pub(crate) async fn candidate(
        &self,
        store: &Store,
        name: &str,
        settings: Settings,
    ) -> Result<Candidate, Error> {
        let schema = self.catalog.schema(name)?;
        let is_kept = |secret: &&str| settings.get(*secret).is_some_and(|value| value == MASK);
        let known = match catalog::secrets(&schema).into_iter().find(is_kept) {
            None => Settings::new(),
            Some(secret) => {
                let before = newest(store, name).await?;
                stays(secret, &schema, before.as_ref(), &settings)?;
                self.secrets_of(before.as_ref())?
            }
        };
        Candidate::new(&*self.catalog, name, &schema, settings, known)
    }

    /// Rebuilds a provider from a stored version.
    fn again(&self, version: &ProviderVersion, settings: Settings) -> Result<Candidate, Error> {
        let (name, known) = (&version.provider, self.secrets_of(Some(version))?);
        Candidate::new(&*self.catalog, name, &self.catalog.schema(name)?, settings, known)
    }

    fn secrets_of(&self, version: Option<&ProviderVersion>) -> Result<Settings, Error> {
        let sealed = version.and_then(|version| Some((&version.provider, version.content.sealed.as_ref()?)));
        let Some((provider, sealed)) = sealed else { return Ok(Settings::new()) };
        let plain = self.key()?.open(provider, sealed)?;
        // Only `seal` wrote this data.
        serde_json::from_slice(&plain).map_err(|_| Error::Internal)
    }

    fn seal(&self, provider: &str, secrets: &Settings) -> Result<Option<Sealed>, Error> {
        if secrets.is_empty() {
            return Ok(None);
        }
        let plain = serde_json::to_vec(secrets).map_err(|_| Error::Internal)?;
        Ok(Some(self.key()?.seal(provider, &plain)?))
    }

    fn key(&self) -> Result<&SealingKey, Error> {
        self.key.as_ref().map_err(|why| Error::Invalid { field: "secrets", message: why.clone() })
    }

    /// Sets the configuration of a provider, and returns its version number.
    pub(crate) async fn set(&self, world: &World, name: &str, seed: Seed, actor: &str) -> Result<u32, Error> {
        let _turn = self.turn.lock().await;
        let candidate = self.candidate(&world.store, name, seed.settings).await?;
        self.adopt(world, name, candidate, seed.instead, actor).await
    }

    /// Restores an earlier version of a provider's configuration.
    pub(crate) async fn roll_back(
        &self,
        world: &World,
        name: &str,
        version: u32,
        actor: &str,
    ) -> Result<u32, Error> {
        let _turn = self.turn.lock().await;
        let known = world.store.provider_version(name, version).await?.ok_or(Error::NotFound("version"))?;
        match known.content.settings.clone() {
            Some(settings) => {
                let candidate = self.again(&known, settings)?;
                self.adopt(world, name, candidate, known.content.instead, actor).await
            }
            None => self.leave(world, name, actor).await,
        }
    }

    /// Removes the configuration of a provider.
    pub(crate) async fn remove(&self, world: &World, name: &str, actor: &str) -> Result<u32, Error> {
        let _turn = self.turn.lock().await;
        self.leave(world, name, actor).await
    }

    /// Tests and installs a provider. If that fails, shuts it down and changes nothing.
    async fn adopt(
        &self,
        world: &World,
        name: &str,
        candidate: Candidate,
        instead: Vec<String>,
        actor: &str,
    ) -> Result<u32, Error> {
        let provider = Arc::clone(&candidate.provider);
        let adopted = self.try_adopt(world, name, candidate, instead, actor).await;
        if adopted.is_err() {
            self.discard(&provider).await;
        }
        adopted
    }

    async fn try_adopt(
        &self,
        world: &World,
        name: &str,
        candidate: Candidate,
        instead: Vec<String>,
        actor: &str,
    ) -> Result<u32, Error> {
        let Candidate { provider, shown, secrets, hidden } = candidate;
        works(&provider, PROBE).await.map_err(|why| {
            let why = hidden.cover(&why);
            let message =
                format!("the provider does not work with these settings; nothing was changed: {why}");
            Error::Invalid { field: "settings", message }
        })?;
        let sealed = self.seal(name, &secrets)?;
        let mut next = State::clone(&self.state());
        let seat = Seat { provider, instead: instead.clone(), version: None, hidden };
        next.seats.insert(name.to_owned(), seat);
        let content = ProviderContent { settings: Some(shown), instead, sealed };
        self.put(world, name, next, content, actor).await
    }

    /// Shuts down a provider that is not in use. Some kinds have a single instance, which may be in use.
    pub(crate) async fn discard(&self, provider: &Arc<dyn Provider>) {
        let same = |seat: &Seat| std::ptr::addr_eq(Arc::as_ptr(&seat.provider), Arc::as_ptr(provider));
        if !self.state().seats.values().any(same) {
            provider.shut_down().await;
        }
    }

    async fn leave(&self, world: &World, name: &str, actor: &str) -> Result<u32, Error> {
        let mut next = State::clone(&self.state());
        let known = next.seats.remove(name).is_some_and(|seat| seat.version.is_some());
        if !known {
            return Err(Error::NotFound("configuration"));
        }
        if self.catalog.stands(name) {
            next.seats.insert(name.to_owned(), self.standing(name)?);
        }
        self.put(world, name, next, ProviderContent::default(), actor).await
    }

    fn standing(&self, name: &str) -> Result<Seat, Error> {
        let provider = self.catalog.build(name, &Settings::new())?;
        Ok(Seat { provider, instead: Vec::new(), version: None, hidden: Hidden::default() })
    }

    /// Validates the new set of providers as a whole, then stores the configuration and puts it into effect.
    async fn put(
        &self,
        world: &World,
        name: &str,
        mut next: State,
        content: ProviderContent,
        actor: &str,
    ) -> Result<u32, Error> {
        let staged = next.stage(&world.engine)?;
        let used = content.settings.is_some();
        let version = world.store.add_provider_version(name, content, actor, Timestamp::now()).await?;
        if let Some(seat) = next.seats.get_mut(name).filter(|_| used) {
            seat.version = Some(version);
        }
        self.serve_with(&world.engine, staged, next);
        Ok(version)
    }

    /// Sets the default provider.
    pub(crate) async fn make_usual(&self, world: &World, name: &str) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        let next = State { usual: name.to_owned(), ..State::clone(&self.state()) };
        let staged = next.stage(&world.engine)?;
        if let Some(seat) = next.seats.get(name) {
            works(&seat.provider, LOOK).await.map_err(|why| {
                let why = seat.hidden.cover(&why);
                let message = format!("'{name}' does not work; nothing was changed: {why}");
                Error::Invalid { field: "provider", message }
            })?;
        }
        world.store.set_setting(USUAL, &name.into()).await?;
        self.serve_with(&world.engine, staged, next);
        Ok(())
    }

    fn serve_with(&self, engine: &Engine, staged: Staged, next: State) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        for retired in engine.fleet().set(staged) {
            tokio::spawn(Retired::end(retired));
        }
    }
}

impl State {
    fn stage(&self, engine: &Engine) -> Result<Staged, Error> {
        let member =
            |seat: &Seat| Member { provider: Arc::clone(&seat.provider), instead: seat.instead.clone() };
        Ok(engine.fleet().stage(self.seats.values().map(member).collect(), &self.usual)?)
    }
}

async fn works(provider: &Arc<dyn Provider>, patience: Duration) -> Result<(), String> {
    match timeout(patience, provider.check()).await {
        Ok(works) => works.map_err(|error| error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

/// Refuses settings that would send a masked secret to another destination than before.
fn stays(
    secret: &str,
    schema: &Value,
    before: Option<&ProviderVersion>,
    settings: &Settings,
) -> Result<(), Error> {
    let before = before.and_then(|version| version.content.settings.as_ref());
    match before.and_then(|before| catalog::moved(schema, before, settings)) {
        None => Ok(()),
        Some(field) => {
            let message = format!(
                "{field}: would send '{secret}' to another destination; give '{secret}' itself instead of \
                 '{MASK}'"
            );
            Err(Error::Invalid { field: "settings", message })
        }
    }
}

/// Returns the newest version of a provider's configuration.
pub(crate) async fn newest(store: &Store, name: &str) -> Result<Option<ProviderVersion>, Error> {
    Ok(store.provider_versions(name).await?.into_iter().next())
}

/// Checks the health of providers concurrently.
pub(crate) async fn look(posts: Vec<Arc<Post>>) {
    join_all(posts.iter().map(|post| post.test(sleep(LOOK)))).await;
}

/// Checks the health of the providers that `auto` may choose. Runs forever.
pub(crate) async fn watch(world: Arc<World>) {
    loop {
        sleep(ROUND).await;
        look(world.engine.fleet().candidates()).await;
    }
}

/// Checks that a provider with this name exists.
pub(crate) fn known(catalog: &dyn Catalog, name: &str) -> Result<(), Error> {
    let names = catalog.names();
    if names.contains(&name) { Ok(()) } else { Err(catalog::unknown(name, &names).into()) }
}
