//! Startup: recovers from an earlier run of the server, and ensures a default tenant and an admin key exist.

use std::str::FromStr;
use std::sync::Arc;

use belljar_engine::Engine;
use belljar_engine::admit::DEFAULT_TENANT;
use belljar_engine::host_storage::HostStorage;
use belljar_engine::profile::Profiles;
use belljar_store::{Digest, KeySecret, Quotas, Scope, Scopes, Store, TenantName, Timestamp};

use crate::admin::profiles;
use crate::app_state::AppState;
use crate::authentication::Authenticator;
use crate::error::Error;
use crate::places::remove_leftovers;
use crate::provider_registry::{self, InitialProviders, ProviderRegistry};
use crate::settings::Settings;

/// Minimum length of a configured admin key.
const MIN_ADMIN_KEY_BYTES: usize = 32;

/// A configured key with all scopes. Only its digest is kept.
#[derive(Debug, Clone, Copy)]
pub struct AdminKey(Digest);

impl FromStr for AdminKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        if plain && text.len() >= MIN_ADMIN_KEY_BYTES {
            return Ok(Self(Digest::compute(text.as_bytes())));
        }
        let message = format!("must be {MIN_ADMIN_KEY_BYTES} bytes or more of visible ASCII");
        Err(Error::Invalid { field: "BELLJAR_ADMIN_KEY", message })
    }
}

/// The key created on first start, to be shown once; `None` if an admin key already existed.
pub type FirstKey = Option<KeySecret>;

/// Creates the state of a server.
///
/// # Errors
/// The database or the data directory cannot be read or written.
pub async fn prepare(
    engine: Arc<Engine>,
    store: Arc<Store>,
    places: Arc<dyn HostStorage>,
    configured: Profiles,
    providers: InitialProviders,
    settings: Settings,
    set_key: Option<AdminKey>,
) -> Result<(Arc<AppState>, FirstKey), Error> {
    let interrupted = store.interrupt_unfinished_executions(Timestamp::now()).await?;
    if interrupted > 0 {
        tracing::warn!(executions = interrupted, "marked executions of an earlier server as interrupted");
    }
    let ended = store.interrupt_sandboxes(Timestamp::now()).await?.len();
    if ended > 0 {
        tracing::warn!(sandboxes = ended, "marked sandboxes of an earlier server as interrupted");
    }
    remove_leftovers(&*places, &store).await?;
    let home: TenantName = DEFAULT_TENANT.parse()?;
    if store.tenant(&home).await?.is_none() {
        store.add_tenant(&home, Quotas::default(), Timestamp::now()).await?;
    }
    let needs_key = set_key.is_none() && !settings.without_keys && !has_admin(&store, &home).await?;
    let first = if needs_key { Some(first_key(&store, &home).await?) } else { None };
    let accounts = Authenticator::new(home, set_key.map(|key| key.0), settings.without_keys);
    let InitialProviders { catalog, seeds, usual, key } = providers;
    let roster = ProviderRegistry::new(catalog, key);
    let world = Arc::new(AppState::new(engine, store, places, configured, settings, accounts, roster));
    world.update_has_rivals().await?;
    profiles::load(&world).await?;
    provider_registry::load(&world, seeds, usual).await?;
    Ok((world, first))
}

async fn has_admin(store: &Store, home: &TenantName) -> Result<bool, Error> {
    let now = Timestamp::now();
    let opens = |key: &belljar_store::KeyRecord| {
        key.scopes.contains(Scope::Admin) && key.revoked.is_none() && key.expires.is_none_or(|end| now < end)
    };
    Ok(store.keys(home).await?.iter().any(opens))
}

async fn first_key(store: &Store, home: &TenantName) -> Result<KeySecret, Error> {
    Ok(store.add_key(home, "made at the first start", Scopes::all(), None, Timestamp::now()).await?.secret)
}
