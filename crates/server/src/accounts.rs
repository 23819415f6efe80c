//! Authentication: maps a key to its tenant, scopes and quotas.
//!
//! Results are cached for a second. Any administrative change clears the cache, so that a revoked key is
//! refused from the next request on.

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

/// How long a result is cached. An expired key stays usable no longer than that.
const REMEMBERED: Duration = Duration::from_secs(1);
/// Maximum number of cached callers.
const MOST: usize = 1_024;

/// The caller of a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The id of the key, or a name in its place.
    pub(crate) actor: String,
    pub(crate) tenant: TenantName,
    pub(crate) scopes: Scopes,
    pub(crate) quotas: Quotas,
    /// A policy that always applies to requests of the tenant, besides the one they name; the strictest
    /// decides.
    pub(crate) policy: Option<String>,
    /// The default provider of the tenant's requests.
    pub(crate) provider: Option<String>,
    /// Parent of the spans recorded for the caller, if traces are exported.
    pub(crate) context: Option<Context>,
}

impl Caller {
    /// Returns the tenant's settings that apply to all of its requests.
    pub(crate) fn tenancy(&self) -> Tenancy<'_> {
        Tenancy { policy: self.policy.as_deref(), provider: self.provider.as_deref() }
    }

    fn needs(self, scope: Scope) -> Result<Self, Error> {
        if self.scopes.contains(scope) { Ok(self) } else { Err(Error::Forbidden(scope)) }
    }
}

/// A caller with the scope `run`.
#[derive(Debug)]
pub(crate) struct Runner(pub(crate) Caller);

/// A caller with the scope `sandboxes`.
#[derive(Debug)]
pub(crate) struct Keeper(pub(crate) Caller);

/// A caller with the scope `admin`.
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
        // A caller that revokes or rotates its own key must still receive the response.
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

/// Authenticates callers, and caches the results.
#[derive(Debug)]
pub(crate) struct Accounts {
    home: TenantName,
    /// The digest of `BELLJAR_ADMIN_KEY`.
    set_key: Option<Digest>,
    without_keys: bool,
    known: Mutex<Remembered>,
}

#[derive(Debug, Default)]
struct Remembered {
    callers: HashMap<String, Known>,
    /// Number of times the cache was cleared. A result looked up before a clear is not cached after it.
    times: u64,
}

#[derive(Debug)]
struct Known {
    digest: Digest,
    caller: Caller,
    since: Instant,
}

impl Accounts {
    /// Creates an authenticator. `home` is the tenant of callers without a key in the database.
    pub(crate) fn new(home: TenantName, set_key: Option<Digest>, without_keys: bool) -> Self {
        Self { home, set_key, without_keys, known: Mutex::default() }
    }

    /// Returns whether this is the tenant of callers without a key in the database.
    pub(crate) fn is_home(&self, tenant: &TenantName) -> bool {
        self.home == *tenant
    }

    /// Authenticates the sender of these headers.
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
        // The public part of a key. The rest is compared by its digest, in constant time.
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

    /// Authenticates a request without a valid bearer token. A malformed `Authorization` header is always
    /// refused.
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

    /// Clears the cache after a change to tenants or keys.
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
        // A lookup that started before the key was revoked.
        accounts.remember(times, "bj_1", digest, &caller);
        assert!(accounts.remembered("bj_1", &digest).is_none());
    }
}
