//! `/healthz`: liveness and readiness.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{RawQuery, State};
use belljar_engine::provider::DiscardSink;
use belljar_engine::report::Status;
use belljar_engine::request::{HostPaths, Request};
use belljar_store::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::app_state::AppState;
use crate::error::Error;
use crate::query::Query;
use crate::schema;

/// How long the result of a probe is reused.
const PROBE_RESULT_TTL: Duration = Duration::from_secs(5);
/// Timeout of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of the last probe and its time.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<(Instant, Result<(), Error>)>>);

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
pub(crate) async fn show(State(world): State<Arc<AppState>>, query: RawQuery) -> Result<Json<Health>, Error> {
    if Query::parse(query, &["ready"])?.has("ready") {
        return ready(State(world)).await;
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
pub(crate) async fn ready(State(world): State<Arc<AppState>>) -> Result<Json<Health>, Error> {
    if world.live.is_closed() {
        return Err(Error::ShuttingDown);
    }
    let mut last = world.readiness.0.lock().await;
    let known =
        last.as_ref().filter(|(since, _)| since.elapsed() < PROBE_RESULT_TTL).map(|(_, found)| found.clone());
    let found = match known {
        Some(found) => found,
        None => {
            let found = timeout(PROBE_TIMEOUT, probe(&world)).await.unwrap_or(Err(Error::Overloaded));
            *last = Some((Instant::now(), found.clone()));
            found
        }
    };
    found.map(|()| Json(Health { status: "ready" }))
}

/// Runs a minimal program and writes to the database.
async fn probe(world: &AppState) -> Result<(), Error> {
    let request = Request { command: Some(vec!["true".to_owned()]), ..Request::default() };
    let admitted = world.engine.admit(request, HostPaths::default())?;
    let never = Box::pin(std::future::pending());
    let report = world.engine.execute("probe".to_owned(), admitted, &mut DiscardSink, never).await?;
    world.store.probe(Timestamp::now()).await?;
    if report.status == Status::Succeeded { Ok(()) } else { Err(Error::Internal) }
}
