//! Startup: recovers from an earlier run of the server, and ensures a default tenant and an admin key exist.

use std::str::FromStr;
use std::sync::Arc;

use belljar_engine::Engine;
use belljar_engine::admit::DEFAULT_TENANT;
use belljar_engine::host_storage::HostStorage;
use belljar_engine::profile::Profiles;
use belljar_store::{Digest, KeySecret, Quotas, Scope, Scopes, Store, TenantName, Timestamp};

use crate::app_state::AppState;
use crate::authentication::Authenticator;
use crate::error::Error;
use crate::profiles;
use crate::provider_registry::{InitialProviders, ProviderRegistry};
use crate::settings::Settings;
use crate::storage::remove_leftovers;

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
    host_storage: Arc<dyn HostStorage>,
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
    remove_leftovers(&*host_storage, &store).await?;
    let home: TenantName = DEFAULT_TENANT.parse()?;
    if store.tenant(&home).await?.is_none() {
        store.add_tenant(&home, Quotas::default(), Timestamp::now()).await?;
    }
    let needs_key = set_key.is_none() && !settings.without_keys && !has_admin(&store, &home).await?;
    let first = if needs_key { Some(first_key(&store, &home).await?) } else { None };
    let authenticator = Authenticator::new(home, set_key.map(|key| key.0), settings.without_keys);
    let InitialProviders { catalog, seeds, usual, key } = providers;
    let registry = ProviderRegistry::new(&engine, &store, catalog, key);
    let state =
        Arc::new(AppState::new(engine, store, host_storage, configured, settings, authenticator, registry));
    state.update_other_tenants().await?;
    profiles::load(&state).await?;
    state.provider_registry.load(seeds, usual).await?;
    Ok((state, first))
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
