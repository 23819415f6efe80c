//! Startup: the configuration seeds the store, which is authoritative from then on.
//!
//! A configuration that differs from the stored one gives a warning.

use std::collections::BTreeMap;
use std::sync::Arc;

use belljar_engine::catalog::ProviderSettings;
use belljar_store::{ProviderContent, ProviderVersion, Timestamp};

use super::unusable::UnusableProvider;
use super::{
    DEFAULT_PROVIDER_SETTING, InitialProviderConfig, ProviderCandidate, ProviderRegistry, RegisteredProvider,
    RegistryState, SecretMask, check_health, newest_version,
};
use crate::error::Error;

/// Recorded author of the versions that come from the configuration.
const CONFIGURATION_ACTOR: &str = "configuration";

impl ProviderRegistry {
    /// Loads all providers known to the store or the configuration. One with unusable settings answers every
    /// request with the reason, and does not affect the others.
    pub(crate) async fn load(
        &self,
        seeds: BTreeMap<String, InitialProviderConfig>,
        usual: String,
    ) -> Result<(), Error> {
        for (name, seed) in seeds {
            self.seed_store(&name, seed).await?;
        }
        let mut stored: BTreeMap<String, ProviderVersion> = BTreeMap::new();
        stored.extend(self.store.providers().await?.into_iter().map(|one| (one.provider.clone(), one)));
        let mut next = RegistryState { entries: BTreeMap::new(), usual: self.default_provider(usual).await? };
        for name in self.catalog.names() {
            let version = stored.remove(name).filter(|version| version.content.settings.is_some());
            let registered = match version {
                Some(version) => self.registered(name, version),
                None if self.catalog.exists_unconfigured(name) => self.default_entry(name)?,
                None => continue,
            };
            next.entries.insert(name.to_owned(), registered);
        }
        for name in stored.keys() {
            tracing::warn!(provider = name, "configured provider is unknown to this version");
        }
        let staged = next.stage(&self.engine)?;
        self.put_into_effect(staged, next);
        check_health(self.engine.providers().candidates()).await;
        Ok(())
    }

    /// Stores the initial configuration of a provider that the store does not know yet. Otherwise the store wins
    /// over the file and the environment.
    async fn seed_store(&self, name: &str, seed: InitialProviderConfig) -> Result<(), Error> {
        let schema = self.catalog.schema(name)?;
        let candidate =
            ProviderCandidate::new(&*self.catalog, name, &schema, seed.settings, ProviderSettings::new());
        if let Some(stored) = newest_version(&self.store, name).await? {
            let known = (stored.content.settings, stored.content.fallbacks);
            if !candidate.is_ok_and(|candidate| known == (Some(candidate.shown), seed.instead)) {
                tracing::warn!(
                    provider = name,
                    version = stored.version,
                    "the stored configuration is used, which differs from the file; see: belljar provider"
                );
            }
            return Ok(());
        }
        let candidate = candidate?;
        let sealed = self.seal(name, &candidate.secrets)?;
        let content = ProviderContent { settings: Some(candidate.shown), fallbacks: seed.instead, sealed };
        self.store.add_provider_version(name, content, CONFIGURATION_ACTOR, Timestamp::now()).await?;
        Ok(())
    }

    /// Returns the default provider from the store. If the store has no default, stores the configured one.
    async fn default_provider(&self, configured: String) -> Result<String, Error> {
        let stored = self.store.setting(DEFAULT_PROVIDER_SETTING).await?;
        match stored.as_ref().and_then(|value| value.as_str()) {
            Some(name) => Ok(name.to_owned()),
            None => {
                self.store.set_setting(DEFAULT_PROVIDER_SETTING, &configured.as_str().into()).await?;
                Ok(configured)
            }
        }
    }

    fn registered(&self, name: &'static str, version: ProviderVersion) -> RegisteredProvider {
        let settings = version.content.settings.clone().unwrap_or_default();
        let (number, instead) = (Some(version.version), version.content.fallbacks.clone());
        match self.rebuild(&version, settings) {
            Ok(ProviderCandidate { provider, secret_mask: hidden, .. }) => {
                RegisteredProvider { provider, instead, version: number, hidden }
            }
            Err(error) => {
                let why = error.to_string();
                tracing::warn!(provider = name, version = number, why, "provider has unusable settings");
                let provider = Arc::new(UnusableProvider { name, why });
                RegisteredProvider { provider, instead, version: number, hidden: SecretMask::default() }
            }
        }
    }
}
