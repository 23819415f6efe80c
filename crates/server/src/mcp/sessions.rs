//! MCP sessions: the tenant of each, and the sandboxes that end with it.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::request::Parts;
use belljar_store::{SandboxEnd, SandboxId, TenantName};
use belljar_tools::{Hands, Office};
use rmcp::ErrorData;
use rmcp::model::Extensions;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use tokio::runtime::Handle;

use super::SESSION;
use super::hands::Behalf;
use crate::accounts::Caller;
use crate::error::Error;
use crate::sandboxes;
use crate::world::World;

/// Maximum number of sessions, of all tenants together and of one tenant.
const MOST: usize = 1_024;
const MOST_OF_ONE: usize = 128;
/// How long a session may be idle before it ends.
const SILENCE: Duration = Duration::from_secs(1_800);

/// Tracks the tenant of each session.
pub(crate) struct Sessions {
    manager: Arc<LocalSessionManager>,
    owners: Mutex<Owners>,
}

#[derive(Debug, Default)]
struct Owners {
    begun: HashMap<String, TenantName>,
    /// Tenants of starting sessions, which have no id yet. They count, or concurrent starts could exceed the
    /// limit.
    beginning: Vec<TenantName>,
}

/// A slot for a starting session.
#[derive(Debug)]
pub(super) struct Room<'a> {
    owners: &'a Mutex<Owners>,
    tenant: TenantName,
}

impl Room<'_> {
    pub(super) fn take(self, session: String) {
        lock(self.owners).begun.insert(session, self.tenant.clone());
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let beginning = &mut lock(self.owners).beginning;
        if let Some(at) = beginning.iter().position(|tenant| *tenant == self.tenant) {
            beginning.swap_remove(at);
        }
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("owners", &self.owners).finish_non_exhaustive()
    }
}

impl Default for Sessions {
    fn default() -> Self {
        let mut manager = LocalSessionManager::default();
        manager.session_config.keep_alive = Some(SILENCE);
        Self { manager: Arc::new(manager), owners: Mutex::default() }
    }
}

impl Sessions {
    pub(super) fn manager(&self) -> Arc<LocalSessionManager> {
        Arc::clone(&self.manager)
    }

    /// Checks that a session belongs to a tenant. Another tenant's session is reported as unknown.
    pub(super) fn check(&self, session: &str, tenant: &TenantName) -> Result<(), Error> {
        match lock(&self.owners).begun.get(session) {
            Some(owner) if owner == tenant => Ok(()),
            _ => Err(Error::NotFound("session")),
        }
    }

    /// Forgets ended sessions and takes a slot for a new one, or refuses if a limit is reached.
    pub(super) async fn make_room(&self, tenant: TenantName) -> Result<Room<'_>, Error> {
        let alive = self.manager.sessions.read().await;
        let mut owners = lock(&self.owners);
        owners.begun.retain(|session, _| alive.contains_key(session.as_str()));
        if alive.len() + owners.beginning.len() >= MOST {
            return Err(Error::Overloaded);
        }
        let all = owners.begun.values().chain(&owners.beginning);
        if all.filter(|owner| **owner == tenant).count() >= MOST_OF_ONE {
            return Err(Error::TooManySessions(MOST_OF_ONE));
        }
        owners.beginning.push(tenant.clone());
        Ok(Room { owners: &self.owners, tenant })
    }

    pub(super) fn end(&self, session: &str) {
        lock(&self.owners).begun.remove(session);
    }
}

/// One session, or one request of a client without sessions.
#[derive(Debug)]
pub(crate) struct Session {
    world: Arc<World>,
    opened: Arc<Opened>,
}

impl Session {
    pub(super) fn new(world: Arc<World>) -> Self {
        let opened = Opened { world: Arc::clone(&world), ids: Mutex::default() };
        Self { world, opened: Arc::new(opened) }
    }
}

impl Office for Session {
    fn hands(&self, request: &Extensions) -> Result<Arc<dyn Hands>, ErrorData> {
        let parts = request.get::<Parts>();
        let caller = parts.and_then(|parts| parts.extensions.get::<Caller>());
        // `prepared` inserts the caller into every request.
        let (Some(parts), Some(caller)) = (parts, caller) else {
            return Err(ErrorData::internal_error("the caller is unknown", None));
        };
        let opened = parts.headers.contains_key(SESSION).then(|| Arc::clone(&self.opened));
        Ok(Arc::new(Behalf::new(&self.world, caller.clone(), opened)))
    }
}

/// The sandboxes opened in a session. They end when it is dropped.
#[derive(Debug)]
pub(crate) struct Opened {
    world: Arc<World>,
    ids: Mutex<BTreeSet<(TenantName, SandboxId)>>,
}

impl Opened {
    pub(super) fn add(&self, tenant: TenantName, id: SandboxId) {
        lock(&self.ids).insert((tenant, id));
    }

    pub(super) fn remove(&self, tenant: TenantName, id: SandboxId) {
        lock(&self.ids).remove(&(tenant, id));
    }

    pub(super) fn ids(&self) -> Vec<String> {
        lock(&self.ids).iter().map(|(_, id)| id.to_string()).collect()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let ids = std::mem::take(&mut *lock(&self.ids));
        let Ok(runtime) = Handle::try_current() else { return };
        for (tenant, id) in ids {
            let world = Arc::clone(&self.world);
            runtime.spawn(async move {
                if let Some(open) = world.sandboxes.find(&tenant, &id) {
                    sandboxes::end(&world, &open, SandboxEnd::Closed).await;
                }
            });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
