//! `/healthz`: liveness and readiness.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use schemars::JsonSchema;
use serde::Serialize;

use super::schema;
use crate::app_state::AppState;
use crate::error::Error;
use crate::http::query::Query;

/// Health of the server.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Health {
    /// Health status: live or ready.
    status: &'static str,
}

/// Returns whether the server is alive; with `?ready`, whether it can run code now.
#[utoipa::path(
    get, path = "/healthz", tag = "service", security(()),
    params(("ready" = Option<String>, Query, description = "Check readiness as `/healthz/ready` does")),
    responses(
        (status = 200, description = "The server is alive", body = ref(schema::response::<Health>())),
        (status = 503, description = "The server cannot run code now"),
    )
)]
pub(crate) async fn show(State(state): State<Arc<AppState>>, query: RawQuery) -> Result<Json<Health>, Error> {
    if Query::parse(query, &["ready"])?.has("ready") {
        return ready(State(state)).await;
    }
    Ok(Json(Health { status: "live" }))
}

/// Returns whether the server can run code now.
///
/// The answer comes from a real run and a real database write at most five seconds ago.
#[utoipa::path(
    get, path = "/healthz/ready", tag = "service", security(()),
    responses(
        (status = 200, description = "The server can run code", body = ref(schema::response::<Health>())),
        (status = 503, description = "The server cannot run code now"),
    )
)]
pub(crate) async fn ready(State(state): State<Arc<AppState>>) -> Result<Json<Health>, Error> {
    if state.live_executions.is_closed() {
        return Err(Error::ShuttingDown);
    }
    state.readiness.check(&state.engine, &state.store).await?;
    Ok(Json(Health { status: "ready" }))
}
