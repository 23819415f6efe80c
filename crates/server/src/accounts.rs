//! Who calls: a key becomes a tenant, its scopes and its quotas.
//!
//! What was found is remembered for a second, and forgotten at once when an administrator changes something: a key that
//! is revoked opens nothing from the next request on.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::http::{HeaderMap, header, request::Parts};
use belljar_engine::Tenancy;
use belljar_store::{Digest, KeyId, Quotas, Scope, Scopes, Store, Tenant, TenantName, Timestamp};
use std::sync::Arc;

use crate::bearers::Bearer;
use crate::body::Sender;
use crate::error::Error;
use crate::trace::{self, Context};
use crate::world::World;

/// How long what was found counts: an expired key opens no longer than that.
const REMEMBERED: Duration = Duration::from_secs(1);
/// The most that are remembered.
const MOST: usize = 1_024;

/// On whose behalf a request is.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The id of the key, or what stands for one.
    pub(crate) actor: String,
    pub(crate) tenant: TenantName,
    pub(crate) scopes: Scopes,
    pub(crate) quotas: Quotas,
    /// Above which no request of the tenant can go.
    pub(crate) policy: Option<String>,
    /// Who serves the tenant's requests that name nobody.
    pub(crate) provider: Option<String>,
    /// What is done for the caller is part of this, where traces are kept.
    pub(crate) context: Option<Context>,
}

impl Caller {
    /// What holds for all requests of the tenant.
    pub(crate) fn tenancy(&self) -> Tenancy<'_> {
        Tenancy { policy: self.policy.as_deref(), provider: self.provider.as_deref() }
    }

    fn needs(self, scope: Scope) -> Result<Self, Error> {
        if self.scopes.contains(scope) { Ok(self) } else { Err(Error::Forbidden(scope)) }
    }
}

/// A caller who may run things.
#[derive(Debug)]
pub(crate) struct Runner(pub(crate) Caller);

/// A caller who may keep sandboxes.
#[derive(Debug)]
pub(crate) struct Keeper(pub(crate) Caller);

/// A caller who may change tenants, keys and profiles.
#[derive(Debug)]
pub(crate) struct Admin(pub(crate) Caller);

impl FromRequestParts<Arc<World>> for Runner {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, world: &Arc<World>) -> Result<Self, Error> {
        caller(parts, world).await?.needs(Scope::Run).map(Self)
    }
}

impl FromRequestParts<Arc<World>> for Keeper {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, world: &Arc<World>) -> Result<Self, Error> {
        caller(parts, world).await?.needs(Scope::Sandboxes).map(Self)
    }
}

impl FromRequestParts<Arc<World>> for Admin {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, world: &Arc<World>) -> Result<Self, Error> {
        let caller = caller(parts, world).await?;
        // Whoever takes back its own key, or rotates it, still has to hear of that.
        comes_with(parts, None);
        let refused = crate::admin::Act::refused(&caller, parts);
        match caller.needs(Scope::Admin) {
            Ok(caller) => Ok(Self(caller)),
            Err(error) => {
                refused.record(&world.store).await?;
                Err(error)
            }
        }
    }
}

async fn caller(parts: &mut Parts, world: &World) -> Result<Caller, Error> {
    let caller = world.accounts.caller(&world.store, &parts.headers).await?;
    comes_with(parts, caller.actor.parse().ok());
    if let Some(bearer) = parts.extensions.get::<Arc<Bearer>>() {
        bearer.belongs_to(&caller.tenant)?;
    }
    parts.extensions.insert(Sender(caller.tenant.clone()));
    Ok(caller)
}

fn comes_with(parts: &Parts, key: Option<KeyId>) {
    if let Some(bearer) = parts.extensions.get::<Arc<Bearer>>() {
        bearer.comes_with(key);
    }
}

/// Keys, and what is remembered of them.
#[derive(Debug)]
pub(crate) struct Accounts {
    home: TenantName,
    /// The digest of the key that automation set.
    set_key: Option<Digest>,
    without_keys: bool,
    known: Mutex<Remembered>,
}

#[derive(Debug, Default)]
struct Remembered {
    callers: HashMap<String, Known>,
    /// How often everything was forgotten: what was looked up before is not remembered after.
    times: u64,
}

#[derive(Debug)]
struct Known {
    digest: Digest,
    caller: Caller,
    since: Instant,
}

impl Accounts {
    /// `home` is the tenant of those who come without a key of the database.
    pub(crate) fn new(home: TenantName, set_key: Option<Digest>, without_keys: bool) -> Self {
        Self { home, set_key, without_keys, known: Mutex::default() }
    }

    /// Whether this is the tenant of those who come without a key of the database.
    pub(crate) fn is_home(&self, tenant: &TenantName) -> bool {
        self.home == *tenant
    }

    /// Who presents these headers.
    pub(crate) async fn caller(&self, store: &Store, headers: &HeaderMap) -> Result<Caller, Error> {
        let caller = self.find(store, headers).await?;
        let context = trace::on_behalf_of(&caller.tenant);
        Ok(Caller { context, ..caller })
    }

    async fn find(&self, store: &Store, headers: &HeaderMap) -> Result<Caller, Error> {
        let Some(presented) = bearer(headers) else { return self.keyless(store, headers).await };
        let digest = Digest::of(presented.as_bytes());
        if self.set_key.is_some_and(|key| key.matches(&digest)) {
            return self.at_home(store, "BELLJAR_ADMIN_KEY", Scopes::all()).await;
        }
        // The part of a key that may be seen; the rest is compared by its digest, in constant time.
        let name = presented.rsplit_once('_').map_or("", |(name, _)| name);
        if let Some(caller) = self.remembered(name, &digest) {
            return Ok(caller);
        }
        let times = self.lock().times;
        let holder = store.verify_key(presented, Timestamp::now()).await?.ok_or(Error::Unauthorized)?;
        let tenant = store.tenant(&holder.tenant).await?.ok_or(Error::Unauthorized)?;
        let caller = Caller {
            actor: holder.key.to_string(),
            tenant: holder.tenant,
            scopes: holder.scopes,
            quotas: tenant.quotas,
            policy: tenant.policy,
            provider: tenant.provider,
            context: None,
        };
        self.remember(times, name, digest, &caller);
        Ok(caller)
    }

    /// Whoever sends a wrong key is told so; without any, it depends on how the server was started.
    async fn keyless(&self, store: &Store, headers: &HeaderMap) -> Result<Caller, Error> {
        if !self.without_keys || headers.contains_key(header::AUTHORIZATION) {
            return Err(Error::Unauthorized);
        }
        self.at_home(store, "anonymous", [Scope::Run, Scope::Sandboxes].into_iter().collect()).await
    }

    async fn at_home(&self, store: &Store, actor: &str, scopes: Scopes) -> Result<Caller, Error> {
        let digest = Digest::of(actor.as_bytes());
        if let Some(caller) = self.remembered(actor, &digest) {
            return Ok(caller);
        }
        let times = self.lock().times;
        let tenant = store.tenant(&self.home).await?.ok_or(Error::Unauthorized)?;
        let Tenant { name, quotas, policy, provider, .. } = tenant;
        let actor = actor.to_owned();
        let caller = Caller { actor, tenant: name, scopes, quotas, policy, provider, context: None };
        self.remember(times, &caller.actor, digest, &caller);
        Ok(caller)
    }

    fn remembered(&self, name: &str, digest: &Digest) -> Option<Caller> {
        let known = self.lock();
        let found = known.callers.get(name)?;
        (found.since.elapsed() < REMEMBERED && found.digest.matches(digest)).then(|| found.caller.clone())
    }

    fn remember(&self, times: u64, name: &str, digest: Digest, caller: &Caller) {
        let mut known = self.lock();
        if known.times != times {
            return;
        }
        if known.callers.len() >= MOST {
            known.callers.clear();
        }
        known
            .callers
            .insert(name.to_owned(), Known { digest, caller: caller.clone(), since: Instant::now() });
    }

    /// After a change to tenants or keys.
    pub(crate) fn forget(&self) {
        let mut known = self.lock();
        known.callers.clear();
        known.times += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_up_before_a_change_is_not_remembered_after_it() {
        let accounts = Accounts::new("default".parse().unwrap(), None, false);
        let digest = Digest::of(b"key");
        let caller = Caller {
            actor: "bj_1".to_owned(),
            tenant: "default".parse().unwrap(),
            scopes: Scopes::all(),
            quotas: Quotas::default(),
            policy: None,
            provider: None,
            context: None,
        };
        let times = accounts.lock().times;
        accounts.remember(times, "bj_1", digest, &caller);
        assert!(accounts.remembered("bj_1", &digest).is_some());
        accounts.forget();
        assert!(accounts.remembered("bj_1", &digest).is_none());
        // The answer to a question from before the key was taken back.
        accounts.remember(times, "bj_1", digest, &caller);
        assert!(accounts.remembered("bj_1", &digest).is_none());
    }
}
