//! Resolves names like every other program on this host: with its resolver and its `/etc/hosts`.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use belljar_engine::provider::BoxFuture;
use tokio::sync::Semaphore;

/// Resolves names to addresses.
pub trait Resolve: Debug + Send + Sync {
    /// Returns all addresses of a name, preferred ones first.
    fn resolve(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// Threads for lookups of all sandboxes. The resolver cannot be interrupted, so an abandoned lookup still
/// occupies one.
const MAX_LOOKUP_THREADS: usize = 64;
/// Threads for lookups of one tenant: half of all, because names that take long to resolve are a tenant's
/// choice.
const MAX_TENANT_THREADS: usize = MAX_LOOKUP_THREADS / 2;

static LOOKUP_THREADS: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(MAX_LOOKUP_THREADS)));
/// The shares of tenants that have a sandbox with egress, or a lookup that has not ended.
static TENANT_THREADS: LazyLock<Mutex<HashMap<String, Weak<Semaphore>>>> = LazyLock::new(Mutex::default);

/// The host's own resolver, on behalf of a tenant.
#[derive(Debug)]
pub struct SystemResolver {
    tenant_threads: Arc<Semaphore>,
}

impl SystemResolver {
    /// Creates a resolver that shares its threads with all others of the tenant.
    pub fn for_tenant(tenant: &str) -> Self {
        // Each statement leaves the map consistent, so a panic elsewhere does not corrupt it.
        let mut shares = TENANT_THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        shares.retain(|_, share| share.strong_count() > 0);
        let known = shares.get(tenant).and_then(Weak::upgrade);
        let tenant_threads = known.unwrap_or_else(|| Arc::new(Semaphore::new(MAX_TENANT_THREADS)));
        shares.insert(tenant.to_owned(), Arc::downgrade(&tenant_threads));
        Self { tenant_threads }
    }
}

impl Resolve for SystemResolver {
    fn resolve(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let tenant_threads = Arc::clone(&self.tenant_threads);
        Box::pin(async move {
            let share = tenant_threads.acquire_owned().await.map_err(io::Error::other)?;
            let thread = Arc::clone(&LOOKUP_THREADS).acquire_owned().await.map_err(io::Error::other)?;
            let found = tokio::task::spawn_blocking(move || {
                let found = (name.as_str(), 0).to_socket_addrs();
                drop((share, thread));
                found.map(|found| found.map(|address| address.ip()).collect())
            });
            found.await.map_err(io::Error::other)?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_one_share_of_the_lookup_threads() {
        let (one, two) = (SystemResolver::for_tenant("slow"), SystemResolver::for_tenant("slow"));
        let busy = Arc::clone(&one.tenant_threads).try_acquire_many_owned(MAX_TENANT_THREADS as u32).ok();
        let free = |resolver: &SystemResolver| resolver.tenant_threads.available_permits();
        assert_eq!((free(&two), free(&SystemResolver::for_tenant("other"))), (0, MAX_TENANT_THREADS));
        // Lookups that go on after their sandboxes are gone still count.
        drop((one, two));
        assert_eq!(free(&SystemResolver::for_tenant("slow")), 0);
        drop(busy);
        assert_eq!(free(&SystemResolver::for_tenant("slow")), MAX_TENANT_THREADS);
    }
}
