//! What is counted and measured, for Prometheus. Labels are words of closed lists: no tenant, no code, no id.

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{Method, StatusCode, header};
use axum::response::IntoResponse;
use belljar_engine::living::State as Life;
use belljar_engine::outcome::Warmth;
use belljar_engine::report::Report;
use belljar_store::SandboxEnd;
use belljar_store::executions::Status;
use metrics::{Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

use crate::accounts::Admin;
use crate::error::{Code, Error};
use crate::world::World;

/// Seconds: from a warm run to a long one.
const SECONDS: &[f64] =
    &[0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0];
const METADATA: Metadata<'static> = Metadata::new("belljar", Level::INFO, None);

/// The service's own counters: none are global, so that two servers in one process are two.
pub(crate) struct Meters(PrometheusRecorder);

impl fmt::Debug for Meters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meters")
    }
}

impl Meters {
    pub(crate) fn new() -> Self {
        // Only an empty list of buckets is refused.
        let builder = PrometheusBuilder::new();
        Self(builder.set_buckets(SECONDS).unwrap_or_default().build_recorder())
    }

    pub(crate) fn ran(&self, report: &Report, language: &'static str) {
        let status = Status::from(report.status).as_str();
        self.count(
            "belljar_executions_total",
            vec![Label::new("status", status), Label::new("language", language)],
        );
        let warm = match report.receipt.warm {
            Warmth::Pool => "pool",
            Warmth::Fork => "fork",
            Warmth::Cold => "cold",
        };
        let key = Key::from_parts("belljar_execution_seconds", vec![Label::new("warm", warm)]);
        self.0.register_histogram(&key, &METADATA).record(report.duration_ms / 1_000.0);
    }

    pub(crate) fn opened(&self) {
        self.count("belljar_sandboxes_opened_total", vec![]);
    }

    pub(crate) fn ended(&self, because: SandboxEnd) {
        self.count("belljar_sandboxes_ended_total", vec![Label::new("because", because.as_str())]);
    }

    pub(crate) fn refused(&self, code: Code) {
        self.count("belljar_rejections_total", vec![Label::new("code", code.word())]);
    }

    pub(crate) fn answered(&self, method: &Method, route: &str, status: StatusCode) {
        let method = match *method {
            Method::GET | Method::POST | Method::PUT | Method::PATCH | Method::DELETE => method.as_str(),
            _ => "other",
        };
        let labels = vec![
            Label::new("method", method.to_owned()),
            Label::new("route", route.to_owned()),
            Label::new("status", status.as_str().to_owned()),
        ];
        self.count("belljar_http_requests_total", labels);
    }

    fn count(&self, name: &'static str, labels: Vec<Label>) {
        self.0.register_counter(&Key::from_parts(name, labels), &METADATA).increment(1);
    }

    fn level(&self, name: &'static str, labels: Vec<Label>, value: f64) {
        self.0.register_gauge(&Key::from_parts(name, labels), &METADATA).set(value);
    }
}

/// Everything, in Prometheus' own text form.
#[utoipa::path(
    get, path = "/metrics", tag = "service",
    responses(
        (status = 200, description = "Prometheus text", body = String, content_type = "text/plain"),
        (status = 403, description = "The key has no scope 'admin'", body = crate::schema::Problem),
    )
)]
pub(crate) async fn show(State(world): State<Arc<World>>, _admin: Admin) -> Result<impl IntoResponse, Error> {
    let meters = &world.meters;
    meters.level("belljar_executions_waiting", vec![], world.gate.waiting() as f64);
    meters.level("belljar_executions_under_way", vec![], world.live.count() as f64);
    let paused = world.sandboxes.all().iter().filter(|open| open.living.state() == Life::Paused).count();
    let running = world.sandboxes.all().len() - paused;
    for (state, count) in [("running", running), ("paused", paused)] {
        meters.level("belljar_sandboxes", vec![Label::new("state", state)], count as f64);
    }
    let (mut size, mut memory) = (0, 0);
    for pool in world.engine.pools().await {
        size += pool.size;
        memory += pool.memory_bytes;
    }
    meters.level("belljar_pool_sandboxes", vec![], size as f64);
    meters.level("belljar_pool_memory_bytes", vec![], memory as f64);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], meters.0.handle().render()))
}
