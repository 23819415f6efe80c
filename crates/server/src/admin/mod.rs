//! Administrative routes. Every action, including refused ones, is written to the audit log.

pub(crate) mod audit;
pub(crate) mod keys;
pub(crate) mod profiles;
pub(crate) mod providers;
pub(crate) mod tenants;

use std::future::Future;
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::request::Parts;
use belljar_store::{AuditEntry, AuditOutcome, Store, Timestamp};

use crate::app_state::AppState;
use crate::authentication::{AdminCaller, Caller};
use crate::error::Error;
use crate::middleware::RequestId;
use crate::uncancellable::run_uncancellable;

/// Maximum length of a target in characters, below the limit of the audit log. No valid name is longer.
const MAX_TARGET_CHARS: usize = 200;

/// A request by an administrator.
#[derive(Debug)]
pub(crate) struct AdminRequest {
    world: Arc<AppState>,
    caller: Caller,
    request_id: Option<String>,
}

impl FromRequestParts<Arc<AppState>> for AdminRequest {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, world: &Arc<AppState>) -> Result<Self, Error> {
        let AdminCaller(caller) = AdminCaller::from_request_parts(parts, world).await?;
        Ok(Self { world: Arc::clone(world), caller, request_id: request_id(parts) })
    }
}

impl AdminRequest {
    fn store(&self) -> Arc<Store> {
        Arc::clone(&self.world.store)
    }

    /// Runs an action and writes its outcome to the audit log, even if the client disconnects in between.
    async fn run_audited<T: Send + 'static>(
        &self,
        action: &str,
        target: &str,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let world = Arc::clone(&self.world);
        let act = AuditedAction {
            caller: self.caller.clone(),
            action: action.to_owned(),
            target: Some(target.chars().take(MAX_TARGET_CHARS).collect()),
            request_id: self.request_id.clone(),
        };
        run_uncancellable(async move {
            let done = work.await;
            // The cached callers may be outdated now.
            world.accounts.clear_cache();
            if let Err(error) = world.update_has_rivals().await {
                tracing::warn!(%error, "cannot count tenants; fair shares are unchanged");
            }
            world.bearers.recheck_keys();
            let (outcome, detail) = match &done {
                Ok(_) => (AuditOutcome::Done, None),
                Err(error) => (AuditOutcome::Failed, Some(error.code().as_word())),
            };
            act.write_entry(&world.store, outcome, detail).await?;
            done
        })
        .await
    }
}

/// An action for the audit log.
#[derive(Debug)]
pub(crate) struct AuditedAction {
    caller: Caller,
    action: String,
    target: Option<String>,
    request_id: Option<String>,
}

impl AuditedAction {
    /// Describes a request that is refused for lack of the scope `admin`.
    pub(crate) fn refused_request(caller: &Caller, parts: &Parts) -> Self {
        let route = parts.extensions.get::<MatchedPath>().map_or("none", MatchedPath::as_str);
        Self {
            caller: caller.clone(),
            action: format!("{} {route}", parts.method),
            target: Some(parts.uri.path().chars().take(MAX_TARGET_CHARS / 2).collect()),
            request_id: request_id(parts),
        }
    }

    pub(crate) async fn record_refusal(self, store: &Store) -> Result<(), Error> {
        self.write_entry(store, AuditOutcome::Refused, None).await
    }

    async fn write_entry(
        self,
        store: &Store,
        outcome: AuditOutcome,
        detail: Option<String>,
    ) -> Result<(), Error> {
        let Self { caller, action, target, request_id } = self;
        let (at, actor, tenant) = (Timestamp::now(), caller.actor, Some(caller.tenant.to_string()));
        tracing::info!(%actor, %action, on = target.as_deref(), %outcome, "administration");
        let entry = AuditEntry { at, actor, tenant, action, target, outcome, request_id, detail };
        Ok(store.audit(entry).await?)
    }
}

fn request_id(parts: &Parts) -> Option<String> {
    parts.extensions.get::<RequestId>().map(RequestId::to_string)
}
