//! Belljar's own API: `/v1`, and the pages about the server itself. Handlers parse a request, call an operation
//! and render its result.

mod admin;
mod artifacts;
mod batches;
mod docs;
mod execution_events;
mod executions;
pub(crate) mod health;
mod inputs;
pub(crate) mod metrics;
mod openapi;
mod sandboxes;
mod schema;
mod snapshots;
mod tools;
mod volumes;

use std::sync::Arc;

use axum::Router;
use axum::middleware::map_response;
use axum::routing::{any, delete, get, post};

use self::admin::{audit, keys, profiles, providers, tenants};
use self::sandboxes::{archives, commands, files, network, ports, terminal, watch};
use crate::app_state::AppState;
use crate::http::dialect::{Dialect, bearer_key};
use crate::http::problem;

pub use self::openapi::document;

pub(crate) static DIALECT: Dialect = Dialect {
    name: "v1",
    // Its own routes are below `/v1`, and everything that belongs to no other dialect is answered by it.
    prefix: Some(""),
    own_listener: false,
    key: bearer_key,
    render_error: problem::render,
    checks_all_origins: false,
    exposed_headers: &[],
    routes: |_state| routes(),
};

fn routes() -> Router<Arc<AppState>> {
    service_routes()
        .merge(execution_routes())
        .merge(sandbox_routes())
        .merge(file_routes())
        .merge(port_routes())
        .merge(storage_routes())
        .merge(admin_routes())
}

fn execution_routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/v1/executions", get(executions::list).post(executions::create))
        .route("/v1/executions/{id}", get(executions::show).delete(executions::remove))
        .route("/v1/executions/{id}/cancel", post(executions::cancel))
        .route("/v1/executions/{id}/artifacts/{*path}", get(artifacts::download))
        .route("/v1/batches", post(batches::create))
        .route("/v1/check", post(executions::check))
        .route("/v1/tools/{name}", post(tools::call))
}

fn sandbox_routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/v1/sandboxes", get(sandboxes::list).post(sandboxes::create))
        .route("/v1/sandboxes/{id}", get(sandboxes::show).delete(sandboxes::close))
        .route("/v1/sandboxes/{id}/extend", post(sandboxes::extend))
        .route("/v1/sandboxes/{id}/pause", post(sandboxes::pause))
        .route("/v1/sandboxes/{id}/resume", post(sandboxes::resume))
        .route("/v1/sandboxes/{id}/network", get(network::show).put(network::set))
        .route("/v1/sandboxes/{id}/stats", get(sandboxes::stats))
        .route("/v1/sandboxes/{id}/executions", post(sandboxes::execute))
        .route("/v1/sandboxes/{id}/commands", get(commands::list_commands).post(commands::start_command))
        .route("/v1/sandboxes/{id}/commands/{number}", get(commands::show_command))
        .route("/v1/sandboxes/{id}/commands/{number}/output", get(commands::command_output))
        .route("/v1/sandboxes/{id}/commands/{number}/stdin", post(commands::write_stdin))
        .route("/v1/sandboxes/{id}/commands/{number}/signal", post(commands::signal_command))
        .route("/v1/sandboxes/{id}/commands/{number}/resize", post(commands::resize_terminal))
        .route("/v1/sandboxes/{id}/commands/{number}/terminal", get(terminal::terminal))
}

fn file_routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/v1/sandboxes/{id}/files", get(files::read).put(files::write).delete(files::remove))
        .route("/v1/sandboxes/{id}/files/stat", get(files::stat))
        .route("/v1/sandboxes/{id}/files/list", get(files::list))
        .route("/v1/sandboxes/{id}/files/folder", post(files::make_folder))
        .route("/v1/sandboxes/{id}/files/move", post(files::rename))
        .route("/v1/sandboxes/{id}/files/permissions", post(files::set_permissions))
        .route("/v1/sandboxes/{id}/files/archive", get(archives::pack).put(archives::unpack))
        .route("/v1/sandboxes/{id}/files/watch", get(watch::start))
}

/// A program in a sandbox answers these, so that every response to them has a policy of its own.
fn port_routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/v1/sandboxes/{id}/ports/{port}", any(ports::redirect))
        .route("/v1/sandboxes/{id}/ports/{port}/", any(ports::pass_root))
        .route("/v1/sandboxes/{id}/ports/{port}/{*rest}", any(ports::pass))
        .route_layer(map_response(ports::add_sandbox_policy))
}

fn storage_routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/v1/sandboxes/{id}/snapshots", post(snapshots::make))
        .route("/v1/volumes", get(volumes::list).post(volumes::create))
        .route("/v1/volumes/{name}", get(volumes::show).delete(volumes::remove))
        .route("/v1/snapshots", get(snapshots::list))
        .route("/v1/snapshots/{id}", get(snapshots::show).delete(snapshots::remove))
}

fn admin_routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/v1/tenants", get(tenants::list).post(tenants::create))
        .route("/v1/tenants/{tenant}", get(tenants::show).patch(tenants::change).delete(tenants::remove))
        .route("/v1/tenants/{tenant}/usage", get(tenants::usage))
        .route("/v1/tenants/{tenant}/keys", get(keys::list).post(keys::create))
        .route("/v1/tenants/{tenant}/keys/{key}", delete(keys::revoke))
        .route("/v1/tenants/{tenant}/keys/{key}/rotate", post(keys::rotate))
        .route("/v1/profiles", get(profiles::list))
        .route("/v1/profiles/{profile}", get(profiles::show).put(profiles::set).delete(profiles::remove))
        .route("/v1/providers", get(providers::list))
        .route("/v1/providers/{provider}/schema", get(providers::schema))
        .route(
            "/v1/providers/{provider}/configuration",
            get(providers::show).put(providers::set).delete(providers::remove),
        )
        .route("/v1/providers/{provider}/versions", get(providers::versions))
        .route("/v1/providers/{provider}/rollback", post(providers::roll_back))
        .route("/v1/providers/{provider}/activate", post(providers::activate))
        .route("/v1/providers/{provider}/test", post(providers::test))
        .route("/v1/audit", get(audit::list))
}

fn service_routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/healthz", get(health::show))
        .route("/healthz/ready", get(health::ready))
        .route("/metrics", get(metrics::show))
        .route("/openapi.json", get(openapi::show))
        .route("/docs", get(docs::page))
        .route("/docs/docs.css", get(docs::style))
        .route("/docs/docs.js", get(docs::script))
        .route("/docs/icon.svg", get(docs::icon))
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
