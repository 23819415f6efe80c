//! The providers of this server: built from the configuration in the store, and replaced when it changes.
//!
//! ```text
//! new settings ──▶ fit the schema ──▶ built ──▶ tested ──▶ whole set valid ──▶ stored ──▶ in use
//!                  a failed step changes nothing                                            │
//!                             the old provider is shut down after its last request ◀────────┘
//! ```
//!
//! - `ProviderSet::replace` exchanges all providers at once. A provider that stays keeps its health; one that
//!   is replaced is shut down after the last execution or sandbox that was admitted to it.
//! - Each secret is stored and shown as a mask, so that shown settings can be sent back. Messages of a
//!   provider pass [`SecretMask::mask`], because a service may repeat the key that it refuses. Messages about
//!   settings name them, never their values.

mod candidate;
mod start;
mod test_run;
mod unusable;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use belljar_engine::Engine;
use belljar_engine::catalog::{self, ProviderCatalog, ProviderSettings, SECRET_MASK};
use belljar_engine::provider::Provider;
use belljar_engine::provider_set::{ProviderEntry, ProviderWithFallbacks, RetiredProvider, StagedProviders};
use belljar_store::{ProviderContent, ProviderVersion, SealedSecrets, SealingKey, Store, Timestamp};
use futures_util::future::join_all;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

pub(crate) use self::candidate::{ProviderCandidate, SecretMask};
pub(crate) use self::test_run::run_request;

use crate::error::Error;

/// Name of the setting in the store that holds the default provider.
const DEFAULT_PROVIDER_SETTING: &str = "providers.usual";
/// Timeout of the self-test with new settings, which may have to pull an image.
const SETTINGS_TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout of a health check.
const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of health checks of the providers that `auto` may choose.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Providers and their configuration at startup.
#[derive(Debug)]
pub struct InitialProviders {
    /// The known provider kinds.
    pub catalog: Arc<dyn ProviderCatalog>,
    /// Configurations from the file and the environment, used for providers that the store does not know.
    pub seeds: BTreeMap<String, InitialProviderConfig>,
    /// Default provider, until an administrator changes it.
    pub usual: String,
    /// Key that encrypts secrets, or the reason it is missing.
    pub key: Result<SealingKey, String>,
}

/// Initial configuration of a provider.
#[derive(Clone, Default, PartialEq)]
pub struct InitialProviderConfig {
    /// Settings of the provider.
    pub settings: ProviderSettings,
    /// Providers to use instead while it fails.
    pub instead: Vec<String>,
}

/// Prints only the names of the settings, because values may be secret.
impl fmt::Debug for InitialProviderConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.settings.keys().collect();
        f.debug_struct("InitialProviderConfig")
            .field("settings", &names)
            .field("instead", &self.instead)
            .finish()
    }
}

/// The configured providers of a server.
#[derive(Debug)]
pub(crate) struct ProviderRegistry {
    engine: Arc<Engine>,
    store: Arc<Store>,
    catalog: Arc<dyn ProviderCatalog>,
    key: Result<SealingKey, String>,
    /// Serializes changes.
    change_lock: Mutex<()>,
    state: RwLock<Arc<RegistryState>>,
}

/// The current providers.
#[derive(Debug, Clone, Default)]
pub(crate) struct RegistryState {
    pub(crate) entries: BTreeMap<String, RegisteredProvider>,
    pub(crate) usual: String,
}

/// A provider with its configuration.
#[derive(Debug, Clone)]
pub(crate) struct RegisteredProvider {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) instead: Vec<String>,
    /// Version of its configuration; `None` if it exists without one.
    pub(crate) version: Option<u32>,
    /// Secrets to mask in its messages.
    pub(crate) hidden: SecretMask,
}

impl ProviderRegistry {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        store: &Arc<Store>,
        catalog: Arc<dyn ProviderCatalog>,
        key: Result<SealingKey, String>,
    ) -> Self {
        let (engine, store) = (Arc::clone(engine), Arc::clone(store));
        Self { engine, store, catalog, key, change_lock: Mutex::default(), state: RwLock::default() }
    }

    pub(crate) fn catalog(&self) -> &dyn ProviderCatalog {
        &*self.catalog
    }

    pub(crate) fn state(&self) -> Arc<RegistryState> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Builds a provider from settings, in which a mask stands for the current secret. A masked secret may
    /// only go to the same destination as before: changing the destination requires knowing the secret.
    pub(crate) async fn candidate(
        &self,
        name: &str,
        settings: ProviderSettings,
    ) -> Result<ProviderCandidate, Error> {
        let schema = self.catalog.schema(name)?;
        let is_kept = |secret: &&str| settings.get(*secret).is_some_and(|value| value == SECRET_MASK);
        let known = match catalog::secret_names(&schema).into_iter().find(is_kept) {
            None => ProviderSettings::new(),
            Some(secret) => {
                let before = newest_version(&self.store, name).await?;
                check_secret_destination(secret, &schema, before.as_ref(), &settings)?;
                self.secrets_of(before.as_ref())?
            }
        };
        ProviderCandidate::new(&*self.catalog, name, &schema, settings, known)
    }

    /// Rebuilds a provider from a stored version.
    fn rebuild(
        &self,
        version: &ProviderVersion,
        settings: ProviderSettings,
    ) -> Result<ProviderCandidate, Error> {
        let (name, known) = (&version.provider, self.secrets_of(Some(version))?);
        ProviderCandidate::new(&*self.catalog, name, &self.catalog.schema(name)?, settings, known)
    }

    fn secrets_of(&self, version: Option<&ProviderVersion>) -> Result<ProviderSettings, Error> {
        let sealed = version.and_then(|version| Some((&version.provider, version.content.sealed.as_ref()?)));
        let Some((provider, sealed)) = sealed else { return Ok(ProviderSettings::new()) };
        let plain = self.key()?.open(provider, sealed)?;
        // Only `seal` wrote this data.
        serde_json::from_slice(&plain).map_err(|_| Error::Internal)
    }

    fn seal(&self, provider: &str, secrets: &ProviderSettings) -> Result<Option<SealedSecrets>, Error> {
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
    pub(crate) async fn set(
        &self,
        name: &str,
        seed: InitialProviderConfig,
        actor: &str,
    ) -> Result<u32, Error> {
        let _lock = self.change_lock.lock().await;
        let candidate = self.candidate(name, seed.settings).await?;
        self.test_and_install(name, candidate, seed.instead, actor).await
    }

    /// Restores an earlier version of a provider's configuration.
    pub(crate) async fn roll_back(&self, name: &str, version: u32, actor: &str) -> Result<u32, Error> {
        let _lock = self.change_lock.lock().await;
        let known = self.store.provider_version(name, version).await?.ok_or(Error::NotFound("version"))?;
        match known.content.settings.clone() {
            Some(settings) => {
                let candidate = self.rebuild(&known, settings)?;
                self.test_and_install(name, candidate, known.content.fallbacks, actor).await
            }
            None => self.unconfigure(name, actor).await,
        }
    }

    /// Removes the configuration of a provider.
    pub(crate) async fn remove(&self, name: &str, actor: &str) -> Result<u32, Error> {
        let _lock = self.change_lock.lock().await;
        self.unconfigure(name, actor).await
    }

    /// Tests and installs a provider. If that fails, shuts it down and changes nothing.
    async fn test_and_install(
        &self,
        name: &str,
        candidate: ProviderCandidate,
        instead: Vec<String>,
        actor: &str,
    ) -> Result<u32, Error> {
        let provider = Arc::clone(&candidate.provider);
        let adopted = self.try_install(name, candidate, instead, actor).await;
        if adopted.is_err() {
            self.discard(&provider).await;
        }
        adopted
    }

    async fn try_install(
        &self,
        name: &str,
        candidate: ProviderCandidate,
        instead: Vec<String>,
        actor: &str,
    ) -> Result<u32, Error> {
        let ProviderCandidate { provider, shown, secrets, secret_mask: hidden } = candidate;
        self.test_settings(&provider).await.map_err(|why| {
            let why = hidden.mask(&why);
            let message =
                format!("the provider does not work with these settings; nothing was changed: {why}");
            Error::Invalid { field: "settings", message }
        })?;
        let sealed = self.seal(name, &secrets)?;
        let mut next = RegistryState::clone(&self.state());
        let registered = RegisteredProvider { provider, instead: instead.clone(), version: None, hidden };
        next.entries.insert(name.to_owned(), registered);
        let content = ProviderContent { settings: Some(shown), fallbacks: instead, sealed };
        self.store_and_use(name, next, content, actor).await
    }

    /// Tests a provider by its self-test, and by running a program.
    async fn test_settings(&self, provider: &Arc<dyn Provider>) -> Result<(), String> {
        self_test(provider, SETTINGS_TEST_TIMEOUT).await?;
        test_run::check_runs(provider, *self.engine.ceiling()).await
    }

    /// Returns a text with the secrets of all providers masked.
    pub(crate) fn mask(&self, text: &str) -> String {
        let state = self.state();
        state.entries.values().fold(text.to_owned(), |text, registered| registered.hidden.mask(&text))
    }

    /// Shuts down a provider that is not in use. Some kinds have a single instance, which may be in use.
    pub(crate) async fn discard(&self, provider: &Arc<dyn Provider>) {
        let same = |registered: &RegisteredProvider| {
            std::ptr::addr_eq(Arc::as_ptr(&registered.provider), Arc::as_ptr(provider))
        };
        if !self.state().entries.values().any(same) {
            provider.shut_down().await;
        }
    }

    async fn unconfigure(&self, name: &str, actor: &str) -> Result<u32, Error> {
        let mut next = RegistryState::clone(&self.state());
        let known = next.entries.remove(name).is_some_and(|registered| registered.version.is_some());
        if !known {
            return Err(Error::NotFound("configuration"));
        }
        if self.catalog.exists_unconfigured(name) {
            next.entries.insert(name.to_owned(), self.default_entry(name)?);
        }
        self.store_and_use(name, next, ProviderContent::default(), actor).await
    }

    fn default_entry(&self, name: &str) -> Result<RegisteredProvider, Error> {
        let provider = self.catalog.build(name, &ProviderSettings::new())?;
        Ok(RegisteredProvider { provider, instead: Vec::new(), version: None, hidden: SecretMask::default() })
    }

    /// Validates the new set of providers as a whole, then stores the configuration and puts it into effect.
    async fn store_and_use(
        &self,
        name: &str,
        mut next: RegistryState,
        content: ProviderContent,
        actor: &str,
    ) -> Result<u32, Error> {
        let staged = next.stage(&self.engine)?;
        let used = content.settings.is_some();
        let version = self.store.add_provider_version(name, content, actor, Timestamp::now()).await?;
        if let Some(registered) = next.entries.get_mut(name).filter(|_| used) {
            registered.version = Some(version);
        }
        self.put_into_effect(staged, next);
        Ok(version)
    }

    /// Sets the default provider.
    pub(crate) async fn set_default(&self, name: &str) -> Result<(), Error> {
        let _lock = self.change_lock.lock().await;
        let next = RegistryState { usual: name.to_owned(), ..RegistryState::clone(&self.state()) };
        let staged = next.stage(&self.engine)?;
        if let Some(registered) = next.entries.get(name) {
            self_test(&registered.provider, HEALTH_CHECK_TIMEOUT).await.map_err(|why| {
                let why = registered.hidden.mask(&why);
                let message = format!("'{name}' does not work; nothing was changed: {why}");
                Error::Invalid { field: "provider", message }
            })?;
        }
        self.store.set_setting(DEFAULT_PROVIDER_SETTING, &name.into()).await?;
        self.put_into_effect(staged, next);
        Ok(())
    }

    fn put_into_effect(&self, staged: StagedProviders, next: RegistryState) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        for retired in self.engine.providers().replace(staged) {
            tokio::spawn(RetiredProvider::shut_down(retired));
        }
    }
}

impl RegistryState {
    fn stage(&self, engine: &Engine) -> Result<StagedProviders, Error> {
        let member = |registered: &RegisteredProvider| ProviderWithFallbacks {
            provider: Arc::clone(&registered.provider),
            fallbacks: registered.instead.clone(),
        };
        Ok(engine.providers().stage(self.entries.values().map(member).collect(), &self.usual)?)
    }
}

async fn self_test(provider: &Arc<dyn Provider>, time_limit: Duration) -> Result<(), String> {
    match timeout(time_limit, provider.self_test()).await {
        Ok(works) => works.map_err(|error| error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

/// Refuses settings that would send a masked secret to another destination than before.
fn check_secret_destination(
    secret: &str,
    schema: &Value,
    before: Option<&ProviderVersion>,
    settings: &ProviderSettings,
) -> Result<(), Error> {
    let before = before.and_then(|version| version.content.settings.as_ref());
    match before.and_then(|before| catalog::changed_destination(schema, before, settings)) {
        None => Ok(()),
        Some(field) => {
            let message = format!(
                "{field}: would send '{secret}' to another destination; give '{secret}' itself instead of \
                 '{SECRET_MASK}'"
            );
            Err(Error::Invalid { field: "settings", message })
        }
    }
}

/// Returns the newest version of a provider's configuration.
pub(crate) async fn newest_version(store: &Store, name: &str) -> Result<Option<ProviderVersion>, Error> {
    Ok(store.provider_versions(name).await?.into_iter().next())
}

/// Checks the health of providers concurrently.
pub(crate) async fn check_health(entries: Vec<Arc<ProviderEntry>>) {
    join_all(entries.iter().map(|entry| entry.run_self_test(sleep(HEALTH_CHECK_TIMEOUT)))).await;
}

/// Checks the health of the providers that `auto` may choose. Runs forever.
pub(crate) async fn check_health_periodically(engine: Arc<Engine>) {
    loop {
        sleep(HEALTH_CHECK_INTERVAL).await;
        check_health(engine.providers().candidates()).await;
    }
}

/// Checks that a provider with this name exists.
pub(crate) fn check_provider_exists(catalog: &dyn ProviderCatalog, name: &str) -> Result<(), Error> {
    let names = catalog.names();
    if names.contains(&name) { Ok(()) } else { Err(catalog::unknown_provider(name, &names).into()) }
}
