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

use crate::accounts::{Admin, Caller};
use crate::edge::RequestId;
use crate::errand::to_the_end;
use crate::error::Error;
use crate::world::World;

/// Maximum length of a target in characters, below the limit of the audit log. No valid name is longer.
const TARGET: usize = 200;

/// A request by an administrator.
#[derive(Debug)]
pub(crate) struct Desk {
    world: Arc<World>,
    caller: Caller,
    request_id: Option<String>,
}

impl FromRequestParts<Arc<World>> for Desk {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, world: &Arc<World>) -> Result<Self, Error> {
        let Admin(caller) = Admin::from_request_parts(parts, world).await?;
        Ok(Self { world: Arc::clone(world), caller, request_id: request_id(parts) })
    }
}

impl Desk {
    fn store(&self) -> Arc<Store> {
        Arc::clone(&self.world.store)
    }

    /// Runs an action and writes its outcome to the audit log, even if the client disconnects in between.
    async fn act<T: Send + 'static>(
        &self,
        action: &str,
        target: &str,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let world = Arc::clone(&self.world);
        let act = Act {
            caller: self.caller.clone(),
            action: action.to_owned(),
            target: Some(target.chars().take(TARGET).collect()),
            request_id: self.request_id.clone(),
        };
        to_the_end(async move {
            let done = work.await;
            // The cached callers may be outdated now.
            world.accounts.forget();
            if let Err(error) = world.count_tenants().await {
                tracing::warn!(%error, "cannot count tenants; fair shares are unchanged");
            }
            world.bearers.look_again();
            let (outcome, detail) = match &done {
                Ok(_) => (AuditOutcome::Done, None),
                Err(error) => (AuditOutcome::Failed, Some(error.code().word())),
            };
            act.enter(&world.store, outcome, detail).await?;
            done
        })
        .await
    }
}

/// An action for the audit log.
#[derive(Debug)]
pub(crate) struct Act {
    caller: Caller,
    action: String,
    target: Option<String>,
    request_id: Option<String>,
}

impl Act {
    /// Describes a request that is refused for lack of the scope `admin`.
    pub(crate) fn refused(caller: &Caller, parts: &Parts) -> Self {
        let route = parts.extensions.get::<MatchedPath>().map_or("none", MatchedPath::as_str);
        Self {
            caller: caller.clone(),
            action: format!("{} {route}", parts.method),
            target: Some(parts.uri.path().chars().take(TARGET / 2).collect()),
            request_id: request_id(parts),
        }
    }

    pub(crate) async fn record(self, store: &Store) -> Result<(), Error> {
        self.enter(store, AuditOutcome::Refused, None).await
    }

    async fn enter(self, store: &Store, outcome: AuditOutcome, detail: Option<String>) -> Result<(), Error> {
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
