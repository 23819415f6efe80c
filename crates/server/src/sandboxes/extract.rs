//! Extracts the sandbox named in a path: a live one of the caller's tenant, or an error.

use std::sync::Arc;

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;

use super::lifecycle;
use super::live_sandbox::SandboxInUse;
use crate::app_state::AppState;
use crate::authentication::SandboxCaller;
use crate::error::Error;

impl FromRequestParts<Arc<AppState>> for SandboxInUse {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, world: &Arc<AppState>) -> Result<Self, Error> {
        let SandboxCaller(caller) = SandboxCaller::from_request_parts(parts, world).await?;
        let unreadable = |_| Error::Invalid { field: "request", message: "the path is not valid".to_owned() };
        let named = RawPathParams::from_request_parts(parts, world).await.map_err(unreadable)?;
        let id = named.iter().find_map(|(name, value)| (name == "id").then_some(value));
        lifecycle::find(world, &caller, id.unwrap_or_default()).await
    }
}
