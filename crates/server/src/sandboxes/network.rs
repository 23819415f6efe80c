//! Network access of a live sandbox: shown and changed.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use belljar_engine::sandbox_handle::NetworkStats;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{SandboxInUse, lifecycle, sandbox_json};
use crate::app_state::AppState;
use crate::body::{JsonBody, parse};
use crate::error::Error;
use crate::schema;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostsBody {
    hosts: Vec<String>,
}

/// Returns the network access of a sandbox, and denied connections.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/network", tag = "sandboxes",
    params(("id" = String, Path, description = "Sandbox id")),
    responses(
        (status = 200, description = "Network access and use; counters only in the mode `hosts`",
            body = schema::NetworkUse),
        (status = 404, description = "No such sandbox in this tenant", body = schema::Problem),
    )
)]
pub(crate) async fn show(used: SandboxInUse) -> Json<Value> {
    Json(match used.living.network_stats() {
        Some(network) => network_json(&network),
        None => {
            let mut object = sandbox_json::network(&used.admitted.plan.network);
            object["refused"] = json!([]);
            object
        }
    })
}

/// Replaces the hosts that a sandbox with mode `hosts` may reach.
///
/// Open connections to other hosts are closed.
#[utoipa::path(
    put, path = "/v1/sandboxes/{id}/network", tag = "sandboxes",
    params(("id" = String, Path, description = "Sandbox id")),
    request_body = schema::Hosts,
    responses(
        (status = 200, description = "The new network access", body = schema::NetworkUse),
        (status = 404, description = "No such sandbox in this tenant", body = schema::Problem),
        (status = 422, description = "A host is invalid, or the sandbox was created with another mode",
            body = schema::Problem),
    )
)]
pub(crate) async fn set(
    State(world): State<Arc<AppState>>,
    used: SandboxInUse,
    body: JsonBody,
) -> Result<Json<Value>, Error> {
    let HostsBody { hosts } = parse(body)?;
    let rules = world.engine.admit_hosts(&hosts)?;
    let network = lifecycle::set_hosts(&world, &used, rules).await?;
    Ok(Json(network_json(&network)))
}

fn network_json(network: &NetworkStats) -> Value {
    json!({
        "mode": "hosts",
        "hosts": network.rules.hosts(),
        "refused": network.refused,
        "connections": network.connections,
        "sent_bytes": network.sent_bytes,
        "received_bytes": network.received_bytes,
    })
}
