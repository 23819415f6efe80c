//! Extracts the sandbox named in a path: a live one of the caller's tenant, or an error.

use std::sync::Arc;

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;

use crate::app_state::AppState;
use crate::error::Error;
use crate::http::callers::SandboxCaller;
use crate::sandboxes::lifecycle;
use crate::sandboxes::live_sandbox::SandboxInUse;

impl FromRequestParts<Arc<AppState>> for SandboxInUse {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<Self, Error> {
        let SandboxCaller(caller) = SandboxCaller::from_request_parts(parts, state).await?;
        let unreadable = |_| Error::Invalid { field: "request", message: "the path is not valid".to_owned() };
        let named = RawPathParams::from_request_parts(parts, state).await.map_err(unreadable)?;
        let id = named.iter().find_map(|(name, value)| (name == "id").then_some(value));
        lifecycle::find(state, &caller, id.unwrap_or_default()).await
    }
}
