//! MCP sessions: the tenant of each, and the sandboxes that end with it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::request::Parts;
use belljar_store::TenantName;
use belljar_tools::{McpHost, ToolBackend};
use rmcp::ErrorData;
use rmcp::model::Extensions;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;

use super::SESSION_HEADER;
use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::error::Error;
use crate::tool_backend::{SessionSandboxes, TenantBackend};

/// Maximum number of sessions, of all tenants together and of one tenant.
const MAX_SESSIONS: usize = 1_024;
const MAX_TENANT_SESSIONS: usize = 128;
/// How long a session may be idle before it ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1_800);

/// Tracks the tenant of each session.
pub(crate) struct McpSessions {
    manager: Arc<LocalSessionManager>,
    owners: Mutex<SessionOwners>,
}

#[derive(Debug, Default)]
struct SessionOwners {
    active: HashMap<String, TenantName>,
    /// Tenants of starting sessions, which have no id yet. They count, or concurrent starts could exceed the
    /// limit.
    starting: Vec<TenantName>,
}

/// A slot for a starting session.
#[derive(Debug)]
pub(super) struct SessionSlot<'a> {
    owners: &'a Mutex<SessionOwners>,
    tenant: TenantName,
}

impl SessionSlot<'_> {
    pub(super) fn activate(self, session: String) {
        lock(self.owners).active.insert(session, self.tenant.clone());
    }
}

impl Drop for SessionSlot<'_> {
    fn drop(&mut self) {
        let starting = &mut lock(self.owners).starting;
        if let Some(at) = starting.iter().position(|tenant| *tenant == self.tenant) {
            starting.swap_remove(at);
        }
    }
}

impl fmt::Debug for McpSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpSessions").field("owners", &self.owners).finish_non_exhaustive()
    }
}

impl Default for McpSessions {
    fn default() -> Self {
        let mut manager = LocalSessionManager::default();
        manager.session_config.keep_alive = Some(IDLE_TIMEOUT);
        Self { manager: Arc::new(manager), owners: Mutex::default() }
    }
}

impl McpSessions {
    pub(super) fn manager(&self) -> Arc<LocalSessionManager> {
        Arc::clone(&self.manager)
    }

    /// Checks that a session belongs to a tenant. Another tenant's session is reported as unknown.
    pub(super) fn check(&self, session: &str, tenant: &TenantName) -> Result<(), Error> {
        match lock(&self.owners).active.get(session) {
            Some(owner) if owner == tenant => Ok(()),
            _ => Err(Error::NotFound("session")),
        }
    }

    /// Forgets ended sessions and takes a slot for a new one, or refuses if a limit is reached.
    pub(super) async fn reserve_slot(&self, tenant: TenantName) -> Result<SessionSlot<'_>, Error> {
        let alive = self.manager.sessions.read().await;
        let mut owners = lock(&self.owners);
        owners.active.retain(|session, _| alive.contains_key(session.as_str()));
        if alive.len() + owners.starting.len() >= MAX_SESSIONS {
            return Err(Error::Overloaded);
        }
        let all = owners.active.values().chain(&owners.starting);
        if all.filter(|owner| **owner == tenant).count() >= MAX_TENANT_SESSIONS {
            return Err(Error::TooManySessions(MAX_TENANT_SESSIONS));
        }
        owners.starting.push(tenant.clone());
        Ok(SessionSlot { owners: &self.owners, tenant })
    }

    pub(super) fn end(&self, session: &str) {
        lock(&self.owners).active.remove(session);
    }
}

/// One session, or one request of a client without sessions.
#[derive(Debug)]
pub(crate) struct McpSession {
    state: Arc<AppState>,
    opened: Arc<SessionSandboxes>,
}

impl McpSession {
    pub(super) fn new(state: Arc<AppState>) -> Self {
        let opened = Arc::new(SessionSandboxes::new(&state));
        Self { state, opened }
    }
}

impl McpHost for McpSession {
    fn backend(&self, request: &Extensions) -> Result<Arc<dyn ToolBackend>, ErrorData> {
        let parts = request.get::<Parts>();
        let caller = parts.and_then(|parts| parts.extensions.get::<Caller>());
        // `prepare_request` inserts the caller into every request.
        let (Some(parts), Some(caller)) = (parts, caller) else {
            return Err(ErrorData::internal_error("the caller is unknown", None));
        };
        let opened = parts.headers.contains_key(SESSION_HEADER).then(|| Arc::clone(&self.opened));
        Ok(Arc::new(TenantBackend::new(&self.state, caller.clone(), opened)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
