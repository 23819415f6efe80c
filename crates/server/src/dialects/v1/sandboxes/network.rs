//! Network access of a live sandbox: shown and changed.

use std::sync::Arc;

use axum::extract::State;
use belljar_engine::finding::Finding;
use belljar_engine::plan::Network;
use belljar_engine::request::NetworkSpec;
use belljar_engine::sandbox_handle::NetworkStats;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app_state::AppState;
use crate::dialects::v1::schema;
use crate::error::Error;
use crate::http::body::{JsonBody, SortedJson, parse};
use crate::sandboxes::lifecycle;
use crate::sandboxes::live_sandbox::SandboxInUse;
use crate::sandboxes::settings::NetworkAccess;

/// New network access of a sandbox with a gate.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "NetworkChange")]
struct NetworkChangeBody {
    /// Access mode: `hosts` or `internet`.
    mode: String,
    /// Allowed hosts, for the mode `hosts`: `pypi.org`, `*.example.com:443`, `10.0.0.5:8080`.
    hosts: Vec<String>,
}

impl Default for NetworkChangeBody {
    fn default() -> Self {
        Self { mode: "hosts".to_owned(), hosts: Vec::new() }
    }
}

/// Network access and use of a sandbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct NetworkUse {
    #[serde(flatten)]
    access: NetworkAccess,
    /// Denied connections.
    refused: Vec<Finding>,
    #[serde(flatten)]
    traffic: Option<NetworkTraffic>,
}

/// Counters of a sandbox's connections, only present in the modes `hosts` and `internet`.
#[derive(Debug, Serialize, JsonSchema)]
struct NetworkTraffic {
    /// Number of connections made.
    connections: u64,
    /// Number of bytes sent.
    sent_bytes: u64,
    /// Number of bytes received.
    received_bytes: u64,
}

impl From<NetworkStats> for NetworkUse {
    fn from(stats: NetworkStats) -> Self {
        let NetworkStats { rules, refused, connections, sent_bytes, received_bytes } = stats;
        let traffic = Some(NetworkTraffic { connections, sent_bytes, received_bytes });
        Self { access: (&Network::from_rules(rules)).into(), refused, traffic }
    }
}

/// Returns the network access of a sandbox, and denied connections.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/network", tag = "sandboxes",
    params(("id" = String, Path, description = "Sandbox id")),
    responses(
        (status = 200, description = "Network access and use; counters only in the modes `hosts` and `internet`",
            body = ref(schema::response::<NetworkUse>())),
        (status = 404, description = "No such sandbox in this tenant"),
    )
)]
pub(crate) async fn show(used: SandboxInUse) -> SortedJson<NetworkUse> {
    SortedJson(match used.living.network_stats() {
        Some(network) => network.into(),
        None => {
            NetworkUse { access: (&used.admitted.plan.network).into(), refused: Vec::new(), traffic: None }
        }
    })
}

/// Replaces what a sandbox with mode `hosts` or `internet` may reach.
///
/// Open connections that are no longer allowed are closed.
#[utoipa::path(
    put, path = "/v1/sandboxes/{id}/network", tag = "sandboxes",
    params(("id" = String, Path, description = "Sandbox id")),
    request_body = ref(schema::request::<NetworkChangeBody>()),
    responses(
        (status = 200, description = "The new network access", body = ref(schema::response::<NetworkUse>())),
        (status = 404, description = "No such sandbox in this tenant"),
        (status = 422, description = "A host or mode is invalid, or the sandbox was created with `none` or `full`"),
    )
)]
pub(crate) async fn set(
    State(state): State<Arc<AppState>>,
    used: SandboxInUse,
    body: JsonBody,
) -> Result<SortedJson<NetworkUse>, Error> {
    let NetworkChangeBody { mode, hosts } = parse(body)?;
    let rules = state.engine.admit_network_change(&NetworkSpec { mode, hosts })?;
    let network = lifecycle::set_hosts(&state, &used, rules).await?;
    Ok(SortedJson(network.into()))
}
