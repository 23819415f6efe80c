//! Authentication: maps a key to its tenant, scopes and quotas.
//!
//! Results are cached for a second. Any administrative change clears the cache, so that a revoked key is
//! refused from the next request on.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_engine::TenantRules;
use belljar_store::{Digest, Quotas, Scope, Scopes, Store, Tenant, TenantName, Timestamp};

use crate::error::Error;
use crate::trace::{self, TraceContext};

/// How long a result is cached. An expired key stays usable no longer than that.
const CALLER_TTL: Duration = Duration::from_secs(1);
/// Maximum number of cached callers.
const MAX_CACHED_CALLERS: usize = 1_024;

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
    pub(crate) context: Option<TraceContext>,
}

impl Caller {
    /// Returns the tenant's settings that apply to all of its requests.
    pub(crate) fn tenancy(&self) -> TenantRules<'_> {
        TenantRules { policy: self.policy.as_deref(), provider: self.provider.as_deref() }
    }

    /// Returns whether the caller may see causes on the host.
    pub(crate) fn is_admin(&self) -> bool {
        self.scopes.contains(Scope::Admin)
    }

    pub(crate) fn require(self, scope: Scope) -> Result<Self, Error> {
        if self.scopes.contains(scope) { Ok(self) } else { Err(Error::Forbidden(scope)) }
    }
}

/// Authenticates callers, and caches the results.
#[derive(Debug)]
pub(crate) struct Authenticator {
    home: TenantName,
    /// The digest of `BELLJAR_ADMIN_KEY`.
    set_key: Option<Digest>,
    without_keys: bool,
    cache: Mutex<CallerCache>,
}

#[derive(Debug, Default)]
struct CallerCache {
    callers: HashMap<String, CachedCaller>,
    /// Number of times the cache was cleared. A result looked up before a clear is not cached after it.
    generation: u64,
}

#[derive(Debug)]
struct CachedCaller {
    digest: Digest,
    caller: Caller,
    since: Instant,
}

impl Authenticator {
    /// Creates an authenticator. `home` is the tenant of callers without a key in the database.
    pub(crate) fn new(home: TenantName, set_key: Option<Digest>, without_keys: bool) -> Self {
        Self { home, set_key, without_keys, cache: Mutex::default() }
    }

    /// Returns whether this is the tenant of callers without a key in the database.
    pub(crate) fn is_default_tenant(&self, tenant: &TenantName) -> bool {
        self.home == *tenant
    }

    /// Authenticates the sender of a request with this key, or without one.
    pub(crate) async fn caller(&self, store: &Store, key: Option<&str>) -> Result<Caller, Error> {
        let caller = match key {
            Some(key) => self.authenticate(store, key).await?,
            None => self.authenticate_keyless(store).await?,
        };
        let context = trace::set_tenant(&caller.tenant);
        Ok(Caller { context, ..caller })
    }

    async fn authenticate(&self, store: &Store, presented: &str) -> Result<Caller, Error> {
        let digest = Digest::compute(presented.as_bytes());
        if self.set_key.is_some_and(|key| key.matches(&digest)) {
            return self.default_tenant_caller(store, "BELLJAR_ADMIN_KEY", Scopes::all()).await;
        }
        // The public part of a key. The rest is compared by its digest, in constant time.
        let name = presented.rsplit_once('_').map_or("", |(name, _)| name);
        if let Some(caller) = self.cached(name, &digest) {
            return Ok(caller);
        }
        let times = self.lock().generation;
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
        self.store_in_cache(times, name, digest, &caller);
        Ok(caller)
    }

    async fn authenticate_keyless(&self, store: &Store) -> Result<Caller, Error> {
        if !self.without_keys {
            return Err(Error::Unauthorized);
        }
        self.default_tenant_caller(store, "anonymous", [Scope::Run, Scope::Sandboxes].into_iter().collect())
            .await
    }

    async fn default_tenant_caller(
        &self,
        store: &Store,
        actor: &str,
        scopes: Scopes,
    ) -> Result<Caller, Error> {
        let digest = Digest::compute(actor.as_bytes());
        if let Some(caller) = self.cached(actor, &digest) {
            return Ok(caller);
        }
        let times = self.lock().generation;
        let tenant = store.tenant(&self.home).await?.ok_or(Error::Unauthorized)?;
        let Tenant { name, quotas, policy, provider, .. } = tenant;
        let actor = actor.to_owned();
        let caller = Caller { actor, tenant: name, scopes, quotas, policy, provider, context: None };
        self.store_in_cache(times, &caller.actor, digest, &caller);
        Ok(caller)
    }

    fn cached(&self, name: &str, digest: &Digest) -> Option<Caller> {
        let known = self.lock();
        let found = known.callers.get(name)?;
        (found.since.elapsed() < CALLER_TTL && found.digest.matches(digest)).then(|| found.caller.clone())
    }

    fn store_in_cache(&self, times: u64, name: &str, digest: Digest, caller: &Caller) {
        let mut known = self.lock();
        if known.generation != times {
            return;
        }
        if known.callers.len() >= MAX_CACHED_CALLERS {
            known.callers.clear();
        }
        known
            .callers
            .insert(name.to_owned(), CachedCaller { digest, caller: caller.clone(), since: Instant::now() });
    }

    /// Clears the cache after a change to tenants or keys.
    pub(crate) fn clear_cache(&self) {
        let mut known = self.lock();
        known.callers.clear();
        known.generation += 1;
    }

    fn lock(&self) -> MutexGuard<'_, CallerCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_started_before_a_change_are_not_cached() {
        let accounts = Authenticator::new("default".parse().unwrap(), None, false);
        let digest = Digest::compute(b"key");
        let caller = Caller {
            actor: "bj_1".to_owned(),
            tenant: "default".parse().unwrap(),
            scopes: Scopes::all(),
            quotas: Quotas::default(),
            policy: None,
            provider: None,
            context: None,
        };
        let times = accounts.lock().generation;
        accounts.store_in_cache(times, "bj_1", digest, &caller);
        assert!(accounts.cached("bj_1", &digest).is_some());
        accounts.clear_cache();
        assert!(accounts.cached("bj_1", &digest).is_none());
        // A lookup that started before the key was revoked.
        accounts.store_in_cache(times, "bj_1", digest, &caller);
        assert!(accounts.cached("bj_1", &digest).is_none());
    }
}
