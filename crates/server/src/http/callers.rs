//! Callers of requests, extracted by the scope that a handler needs.

use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::request::Parts;
use belljar_store::{KeyId, Scope};

use super::body::SendingTenant;
use super::dialect::Dialect;
use super::request_id::RequestId;
use crate::app_state::AppState;
use crate::audit::AuditedAction;
use crate::authentication::Caller;
use crate::error::Error;
use crate::revocation::ConnectionHandle;

/// Maximum length of a refused request's path in the audit log, in characters.
const MAX_PATH_CHARS: usize = 100;

/// A caller with the scope `run`.
#[derive(Debug)]
pub(crate) struct RunCaller(pub(crate) Caller);

/// A caller with the scope `sandboxes`.
#[derive(Debug)]
pub(crate) struct SandboxCaller(pub(crate) Caller);

/// A caller with the scope `admin`.
#[derive(Debug)]
pub(crate) struct AdminCaller(pub(crate) Caller);

impl FromRequestParts<Arc<AppState>> for RunCaller {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<Self, Error> {
        caller(parts, state).await?.require(Scope::Run).map(Self)
    }
}

impl FromRequestParts<Arc<AppState>> for SandboxCaller {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<Self, Error> {
        caller(parts, state).await?.require(Scope::Sandboxes).map(Self)
    }
}

impl FromRequestParts<Arc<AppState>> for AdminCaller {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<Self, Error> {
        let caller = caller(parts, state).await?;
        // A caller that revokes or rotates its own key must still receive the response.
        set_connection_key(parts, None);
        let refused = refused_request(&caller, parts);
        match caller.require(Scope::Admin) {
            Ok(caller) => Ok(Self(caller)),
            Err(error) => {
                refused.record_refusal(&state.store).await?;
                Err(error)
            }
        }
    }
}

async fn caller(parts: &mut Parts, state: &AppState) -> Result<Caller, Error> {
    // Inserted by the middleware.
    let dialect = parts.extensions.get::<&'static Dialect>().ok_or(Error::Internal)?;
    let key = (dialect.key)(&parts.headers, &parts.uri);
    let caller = state.authenticator.caller(&state.store, key.as_deref()).await?;
    set_connection_key(parts, caller.actor.parse().ok());
    if let Some(handle) = parts.extensions.get::<Arc<ConnectionHandle>>() {
        handle.assign_to_tenant(&caller.tenant)?;
    }
    parts.extensions.insert(SendingTenant(caller.tenant.clone()));
    Ok(caller)
}

fn set_connection_key(parts: &Parts, key: Option<KeyId>) {
    if let Some(handle) = parts.extensions.get::<Arc<ConnectionHandle>>() {
        handle.set_key(key);
    }
}

/// Describes a request that is refused for lack of the scope `admin`.
fn refused_request(caller: &Caller, parts: &Parts) -> AuditedAction {
    let route = parts.extensions.get::<MatchedPath>().map_or("none", MatchedPath::as_str);
    let path: String = parts.uri.path().chars().take(MAX_PATH_CHARS).collect();
    AuditedAction::new(caller, &format!("{} {route}", parts.method), &path, request_id(parts))
}

/// Returns the id of a request.
pub(crate) fn request_id(parts: &Parts) -> Option<String> {
    parts.extensions.get::<RequestId>().map(RequestId::to_string)
}
