//! The routers of the listeners, made of the dialects' routes and the layers around all of them.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use tower::util::option_layer;

use crate::app_state::AppState;
use crate::dialects::{DIALECTS, v1};
use crate::error::Error;
use crate::http::dialect::Dialect;
use crate::http::middleware::{Listening, cors_layer, handle_request};

/// Returns the router of the main port: every dialect below its prefix.
pub(crate) fn main(state: Arc<AppState>) -> Router {
    let mut router = Router::new();
    for dialect in DIALECTS {
        let routes = || (dialect.routes)(&state);
        router = match dialect.prefix {
            None => router,
            Some("") => router.merge(routes()),
            Some(prefix) => router.nest(prefix, routes()),
        };
    }
    with_layers(router, state, None)
}

/// Returns the router of a listener that serves one dialect at the root.
pub(crate) fn only(dialect: &'static Dialect, state: Arc<AppState>) -> Router {
    with_layers((dialect.routes)(&state), state, Some(dialect))
}

/// Returns the router of the metrics listener.
pub(crate) fn metrics(state: Arc<AppState>) -> Router {
    let routes = Router::new()
        .route("/metrics", get(v1::metrics::show_without_key))
        .route("/healthz", get(v1::health::show));
    with_layers(routes, state, None)
}

/// Adds the layers that all routes share.
fn with_layers(
    routes: Router<Arc<AppState>>,
    state: Arc<AppState>,
    only: Option<&'static Dialect>,
) -> Router {
    let listening = Listening { state: Arc::clone(&state), only };
    routes
        .fallback(async || Error::NotFound("place"))
        .method_not_allowed_fallback(async || Error::MethodNotAllowed)
        // `http::body` enforces its own limits.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(listening, handle_request))
        // Outermost: a CORS preflight request carries no key.
        .layer(option_layer(cors_layer(&state.settings.origins)))
        .with_state(state)
}
