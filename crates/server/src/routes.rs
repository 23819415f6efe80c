//! The route table.

use std::sync::Arc;

use axum::middleware::from_fn_with_state;
use axum::routing::{any, delete, get, post};
use axum::{Extension, Router, extract::DefaultBodyLimit};
use tower::util::option_layer;

use crate::admin::{audit, keys, profiles, providers, tenants};
use crate::app_state::AppState;
use crate::error::Error;
use crate::middleware::{cors_layer, handle_request};
use crate::places::{snapshots, volumes};
use crate::sandboxes::{archives, files, network, ports, watch};
use crate::{batches, docs, executions, health, mcp, metrics, openapi, sandboxes, tools};

pub(crate) fn router(world: Arc<AppState>) -> Router {
    Router::new()
        .route("/v1/executions", get(executions::list).post(executions::create))
        .route("/v1/executions/{id}", get(executions::show).delete(executions::cancel))
        .route("/v1/batches", post(batches::create))
        .route("/v1/check", post(executions::check))
        .route("/v1/tools/{name}", post(tools::call))
        .route("/mcp", any(mcp::pass).layer(Extension(Arc::new(mcp::service(&world)))))
        .route("/v1/sandboxes", get(sandboxes::list).post(sandboxes::create))
        .route("/v1/sandboxes/{id}", get(sandboxes::show).delete(sandboxes::close))
        .route("/v1/sandboxes/{id}/extend", post(sandboxes::extend))
        .route("/v1/sandboxes/{id}/pause", post(sandboxes::pause))
        .route("/v1/sandboxes/{id}/resume", post(sandboxes::resume))
        .route("/v1/sandboxes/{id}/network", get(network::show).put(network::set))
        .route("/v1/sandboxes/{id}/stats", get(sandboxes::stats))
        .route("/v1/sandboxes/{id}/executions", post(sandboxes::execute))
        .route("/v1/sandboxes/{id}/commands", get(sandboxes::list_commands).post(sandboxes::start_command))
        .route("/v1/sandboxes/{id}/commands/{number}", get(sandboxes::show_command))
        .route("/v1/sandboxes/{id}/commands/{number}/output", get(sandboxes::command_output))
        .route("/v1/sandboxes/{id}/commands/{number}/stdin", post(sandboxes::write_stdin))
        .route("/v1/sandboxes/{id}/commands/{number}/signal", post(sandboxes::signal_command))
        .route("/v1/sandboxes/{id}/commands/{number}/resize", post(sandboxes::resize_terminal))
        .route("/v1/sandboxes/{id}/commands/{number}/terminal", get(sandboxes::terminal))
        .route("/v1/sandboxes/{id}/files", get(files::read).put(files::write).delete(files::remove))
        .route("/v1/sandboxes/{id}/files/stat", get(files::stat))
        .route("/v1/sandboxes/{id}/files/list", get(files::list))
        .route("/v1/sandboxes/{id}/files/folder", post(files::make_folder))
        .route("/v1/sandboxes/{id}/files/move", post(files::rename))
        .route("/v1/sandboxes/{id}/files/permissions", post(files::set_permissions))
        .route("/v1/sandboxes/{id}/files/archive", get(archives::pack).put(archives::unpack))
        .route("/v1/sandboxes/{id}/files/watch", get(watch::start))
        .route("/v1/sandboxes/{id}/ports/{port}", any(ports::pass))
        .route("/v1/sandboxes/{id}/ports/{port}/", any(ports::pass))
        .route("/v1/sandboxes/{id}/ports/{port}/{*rest}", any(ports::pass))
        .route("/v1/sandboxes/{id}/snapshots", post(snapshots::make))
        .route("/v1/volumes", get(volumes::list).post(volumes::create))
        .route("/v1/volumes/{name}", get(volumes::show).delete(volumes::remove))
        .route("/v1/snapshots", get(snapshots::list))
        .route("/v1/snapshots/{id}", get(snapshots::show).delete(snapshots::remove))
        .route("/v1/tenants", get(tenants::list).post(tenants::create))
        .route("/v1/tenants/{tenant}", get(tenants::show).patch(tenants::change).delete(tenants::remove))
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
        .route("/healthz", get(health::show))
        .route("/healthz/ready", get(health::ready))
        .route("/metrics", get(metrics::show))
        .route("/openapi.json", get(openapi::show))
        .route("/docs", get(docs::page))
        .route("/docs/docs.css", get(docs::style))
        .route("/docs/docs.js", get(docs::script))
        .route("/docs/icon.svg", get(docs::icon))
        .with_shared_layers(world)
}

/// Returns the router of the metrics listener.
pub(crate) fn metrics(world: Arc<AppState>) -> Router {
    Router::new()
        .route("/metrics", get(metrics::show_without_key))
        .route("/healthz", get(health::show))
        .with_shared_layers(world)
}

trait SharedLayers {
    fn with_shared_layers(self, world: Arc<AppState>) -> Router;
}

/// Adds the layers that all routes share.
impl SharedLayers for Router<Arc<AppState>> {
    fn with_shared_layers(self, world: Arc<AppState>) -> Router {
        self.fallback(async || Error::NotFound("place"))
            .method_not_allowed_fallback(async || Error::MethodNotAllowed)
            // `body` enforces its own limits.
            .layer(DefaultBodyLimit::disable())
            .layer(from_fn_with_state(Arc::clone(&world), handle_request))
            // Outermost: a CORS preflight request carries no key.
            .layer(option_layer(cors_layer(&world.settings.origins)))
            .with_state(world)
    }
}
