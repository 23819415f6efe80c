//! `/metrics`: metrics for Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::IntoResponse;
use belljar_engine::sandbox_handle::SandboxPhase;
use metrics::Label;

use crate::app_state::AppState;
use crate::http::callers::AdminCaller;

/// Returns all metrics in the Prometheus text format.
#[utoipa::path(
    get, path = "/metrics", tag = "service",
    responses(
        (status = 200, description = "Metrics in the Prometheus text format", body = String,
            content_type = "text/plain"),
        (status = 403, description = "The key lacks the scope `admin`"),
    )
)]
pub(crate) async fn show(State(state): State<Arc<AppState>>, _admin: AdminCaller) -> impl IntoResponse {
    render(&state).await
}

/// Returns all metrics without a key, on the metrics listener.
pub(crate) async fn show_without_key(State(state): State<Arc<AppState>>) -> impl IntoResponse {
    render(&state).await
}

async fn render(state: &AppState) -> ([(HeaderName, &'static str); 1], String) {
    let metrics = &state.metrics;
    metrics.set_gauge("belljar_executions_waiting", vec![], state.run_queue.queued_count() as f64);
    metrics.set_gauge("belljar_executions_under_way", vec![], state.live_executions.count() as f64);
    let (abandoned, refused) = state.check_workers.failures();
    for (why, count) in [("abandoned", abandoned), ("refused", refused)] {
        metrics.set_counter("belljar_readings_failed_total", vec![Label::new("why", why)], count);
    }
    let sandboxes = state.sandboxes.all();
    let paused = sandboxes.iter().filter(|open| open.living.state() == SandboxPhase::Paused).count();
    for (phase, count) in [("running", sandboxes.len() - paused), ("paused", paused)] {
        metrics.set_gauge("belljar_sandboxes", vec![Label::new("state", phase)], count as f64);
    }
    for (kind, count) in state.share_refusals() {
        metrics.set_counter("belljar_share_refusals_total", vec![Label::new("kind", kind)], count);
    }
    metrics.set_pool_metrics(&state.engine.pools().await);
    metrics.set_loop_turns(&state.engine.longest_turns().await);
    if let Some(stock) = state.engine.package_stats().await {
        metrics.set_layer_metrics(&stock);
    }
    if let Some(tracer) = &state.tracer {
        metrics.set_counter("belljar_spans_dropped_total", vec![], tracer.dropped());
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
}
