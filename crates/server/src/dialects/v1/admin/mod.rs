//! Administrative routes. Every action, including refused ones, is written to the audit log.

pub(super) mod audit;
pub(super) mod keys;
pub(super) mod profiles;
pub(super) mod providers;
pub(super) mod tenants;

use std::future::Future;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use belljar_store::Store;

use crate::app_state::AppState;
use crate::audit::AuditedAction;
use crate::authentication::Caller;
use crate::error::Error;
use crate::http::callers::{AdminCaller, request_id};

/// A request by an administrator.
#[derive(Debug)]
pub(crate) struct AdminRequest {
    state: Arc<AppState>,
    caller: Caller,
    request_id: Option<String>,
}

impl FromRequestParts<Arc<AppState>> for AdminRequest {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<Self, Error> {
        let AdminCaller(caller) = AdminCaller::from_request_parts(parts, state).await?;
        Ok(Self { state: Arc::clone(state), caller, request_id: request_id(parts) })
    }
}

impl AdminRequest {
    fn store(&self) -> Arc<Store> {
        Arc::clone(&self.state.store)
    }

    /// Runs an action and writes its outcome to the audit log, even if the client disconnects in between.
    async fn run_audited<T: Send + 'static>(
        &self,
        action: &str,
        target: &str,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let action = AuditedAction::new(&self.caller, action, target, self.request_id.clone());
        action.run(&self.state, work).await
    }
}
