//! Startup: the configuration seeds the store, which is authoritative from then on.

use std::collections::BTreeMap;
use std::sync::Arc;

use belljar_engine::catalog::Settings;
use belljar_store::{ProviderContent, ProviderVersion, Timestamp};

use super::unusable::Unusable;
use super::{Candidate, Hidden, Roster, Seat, Seed, State, USUAL, look, newest};
use crate::error::Error;
use crate::world::World;

/// Recorded author of the versions that come from the configuration.
const CONFIGURATION: &str = "configuration";

/// Loads all providers known to the store or the configuration. One with unusable settings answers every
/// request with the reason, and does not affect the others.
pub(crate) async fn load(world: &World, seeds: BTreeMap<String, Seed>, usual: String) -> Result<(), Error> {
    let roster = &world.roster;
    for (name, seed) in seeds {
        sow(world, &name, seed).await?;
    }
    let mut stored: BTreeMap<String, ProviderVersion> = BTreeMap::new();
    stored.extend(world.store.providers().await?.into_iter().map(|one| (one.provider.clone(), one)));
    let mut next = State { seats: BTreeMap::new(), usual: first_usual(world, usual).await? };
    for name in roster.catalog.names() {
        let said = stored.remove(name).filter(|version| version.content.settings.is_some());
        let seat = match said {
            Some(version) => roster.seat(name, version),
            None if roster.catalog.stands(name) => roster.standing(name)?,
            None => continue,
        };
        next.seats.insert(name.to_owned(), seat);
    }
    for name in stored.keys() {
        tracing::warn!(provider = name, "configured provider is unknown to this version");
    }
    let staged = next.stage(&world.engine)?;
    roster.serve_with(&world.engine, staged, next);
    look(world.engine.fleet().candidates()).await;
    Ok(())
}

/// Stores the initial configuration of a provider that the store does not know yet. Otherwise the store wins
/// over the file and the environment.
async fn sow(world: &World, name: &str, seed: Seed) -> Result<(), Error> {
    let roster = &world.roster;
    let schema = roster.catalog.schema(name)?;
    let sown = Candidate::new(&*roster.catalog, name, &schema, seed.settings, Settings::new());
    if let Some(stored) = newest(&world.store, name).await? {
        let known = (stored.content.settings, stored.content.instead);
        if !sown.is_ok_and(|sown| known == (Some(sown.shown), seed.instead)) {
            tracing::warn!(
                provider = name,
                version = stored.version,
                "the stored configuration is used, which differs from the file; see: belljar provider"
            );
        }
        return Ok(());
    }
    let sown = sown?;
    let sealed = roster.seal(name, &sown.secrets)?;
    let content = ProviderContent { settings: Some(sown.shown), instead: seed.instead, sealed };
    world.store.add_provider_version(name, content, CONFIGURATION, Timestamp::now()).await?;
    Ok(())
}

/// Returns the default provider from the store. If the store has no default, stores the configured one.
async fn first_usual(world: &World, configured: String) -> Result<String, Error> {
    let stored = world.store.setting(USUAL).await?;
    match stored.as_ref().and_then(|value| value.as_str()) {
        Some(name) => Ok(name.to_owned()),
        None => {
            world.store.set_setting(USUAL, &configured.as_str().into()).await?;
            Ok(configured)
        }
    }
}

impl Roster {
    fn seat(&self, name: &'static str, version: ProviderVersion) -> Seat {
        let settings = version.content.settings.clone().unwrap_or_default();
        let (number, instead) = (Some(version.version), version.content.instead.clone());
        match self.again(&version, settings) {
            Ok(Candidate { provider, hidden, .. }) => Seat { provider, instead, version: number, hidden },
            Err(error) => {
                let why = error.to_string();
                tracing::warn!(provider = name, version = number, why, "provider has unusable settings");
                let provider = Arc::new(Unusable { name, why });
                Seat { provider, instead, version: number, hidden: Hidden::default() }
            }
        }
    }
}
