//! Extracts the sandbox named in a path: a live one of the caller's tenant, or an error.

use std::sync::Arc;

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;

use super::life;
use super::open::Used;
use crate::accounts::Keeper;
use crate::error::Error;
use crate::world::World;

impl FromRequestParts<Arc<World>> for Used {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, world: &Arc<World>) -> Result<Self, Error> {
        let Keeper(caller) = Keeper::from_request_parts(parts, world).await?;
        let unreadable = |_| Error::Invalid { field: "request", message: "the path is not valid".to_owned() };
        let named = RawPathParams::from_request_parts(parts, world).await.map_err(unreadable)?;
        let id = named.iter().find_map(|(name, value)| (name == "id").then_some(value));
        life::find(world, &caller, id.unwrap_or_default()).await
    }
}
