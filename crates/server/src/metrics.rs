//! Metrics for Prometheus. Label values come from closed lists: no tenant, no code, no id.

use std::fmt;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use belljar_engine::ErrorCode as Code;
use belljar_engine::packages::PackageStats;
use belljar_engine::provider::{LongestTurns, PoolMetrics};
use belljar_engine::report::Report;
use belljar_store::SandboxEnd;
use metrics::{Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

/// Histogram buckets in seconds, from a warm run to a long one.
const DURATION_BUCKETS: &[f64] =
    &[0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0];
const METADATA: Metadata<'static> = Metadata::new("belljar", Level::INFO, None);

/// Runtimes with warm pools.
const RUNTIMES: &[&str] = &["python", "node"];
/// Help texts of the metrics.
const HELP: &[(&str, &str)] = &[
    ("belljar_executions_total", "Executions that ran, by status and language"),
    ("belljar_execution_seconds", "Duration of executions, by sandbox start: pool, fork or cold"),
    ("belljar_executions_waiting", "Queued executions"),
    ("belljar_executions_under_way", "Queued and running executions"),
    ("belljar_readings_failed_total", "Code checks that timed out or were refused for lack of a worker"),
    ("belljar_rejections_total", "Error responses, by code"),
    ("belljar_share_refusals_total", "Requests refused or delayed because of a fair share, by kind"),
    ("belljar_http_requests_total", "HTTP requests, by method, route and status"),
    ("belljar_pools", "Current warm pools; the other pool metrics are sums over these"),
    ("belljar_pool_sandboxes", "Warm sandboxes ready for use"),
    ("belljar_pool_sandboxes_wanted", "Target number of warm sandboxes"),
    ("belljar_pool_memory_bytes", "Memory used by warm sandboxes"),
    ("belljar_pool_hits", "Runs that used a warm sandbox"),
    ("belljar_pool_forks", "Runs that found no warm sandbox and forked one"),
    ("belljar_pool_misses", "Runs that found no warm sandbox and started cold"),
    ("belljar_pool_interpreters", "Interpreters started as zygotes"),
    ("belljar_pool_mismatches", "Forks that were not confined as claimed; nothing ran in them"),
    ("belljar_pool_refill_seconds", "Time to make the latest warm sandbox, in the slowest pool"),
    (
        "belljar_launcher_longest_turn_cpu_seconds",
        "Highest CPU time of one iteration of the launcher's loop, by the handler that used most of it",
    ),
    (
        "belljar_launcher_longest_turn_wall_seconds",
        "Longest iteration of the launcher's loop, by the handler that used most of it",
    ),
    ("belljar_layers_total", "Package layers requested, by source"),
    ("belljar_layers_install_seconds", "Total time spent installing packages for layers"),
    ("belljar_layers", "Layers in the layer store"),
    ("belljar_layers_bytes", "Size of all layers in the layer store"),
    ("belljar_spans_dropped_total", "Spans that could not be sent to the collector"),
];

/// Metrics of this server. They are not global, so that two servers in one process stay separate.
pub(crate) struct Metrics(PrometheusRecorder);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        // `set_buckets` fails only for an empty list.
        let builder = PrometheusBuilder::new();
        let recorder = builder.set_buckets(DURATION_BUCKETS).unwrap_or_default().build_recorder();
        for (name, meaning) in HELP {
            // `describe_gauge` only sets the help text; the exporter knows the type from the metric's use.
            recorder.describe_gauge((*name).into(), None, (*meaning).into());
        }
        Self(recorder)
    }

    pub(crate) fn ran(&self, report: &Report, language: &'static str) {
        let status = report.status.name();
        self.count(
            "belljar_executions_total",
            vec![Label::new("status", status), Label::new("language", language)],
        );
        let warm = Label::new("warm", report.warmth().name());
        let key = Key::from_parts("belljar_execution_seconds", vec![warm]);
        self.0.register_histogram(&key, &METADATA).record(report.duration_ms / 1_000.0);
    }

    pub(crate) fn opened(&self) {
        self.count("belljar_sandboxes_opened_total", vec![]);
    }

    pub(crate) fn ended(&self, because: SandboxEnd) {
        self.count("belljar_sandboxes_ended_total", vec![Label::new("because", because.as_str())]);
    }

    pub(crate) fn refused(&self, code: Code) {
        self.count("belljar_rejections_total", vec![Label::new("code", code.as_word())]);
    }

    pub(crate) fn answered(&self, method: &Method, route: &str, status: StatusCode) {
        let method = match *method {
            Method::GET | Method::POST | Method::PUT | Method::PATCH | Method::DELETE => method.as_str(),
            _ => "other",
        };
        // A tenant's program may answer with any number; unknown ones share a label.
        let status = if status.canonical_reason().is_some() { status.as_str() } else { "other" };
        let labels = vec![
            Label::new("method", method.to_owned()),
            Label::new("route", route.to_owned()),
            Label::new("status", status.to_owned()),
        ];
        self.count("belljar_http_requests_total", labels);
    }

    fn count(&self, name: &'static str, labels: Vec<Label>) {
        self.0.register_counter(&Key::from_parts(name, labels), &METADATA).increment(1);
    }

    /// Sets the pool metrics, summed per runtime: the name of a single pool could reveal its tenant's
    /// packages.
    pub(crate) fn set_pool_metrics(&self, pools: &[PoolMetrics]) {
        for runtime in RUNTIMES {
            let of = || pools.iter().filter(|pool| pool.name.split('+').next() == Some(runtime));
            let labels = || vec![Label::new("runtime", *runtime)];
            let sum = |what: fn(&PoolMetrics) -> f64| of().map(what).fold(0.0, |sum, each| sum + each);
            self.set_gauge("belljar_pools", labels(), of().count() as f64);
            self.set_gauge("belljar_pool_sandboxes", labels(), sum(|pool| pool.size as f64));
            self.set_gauge("belljar_pool_sandboxes_wanted", labels(), sum(|pool| pool.wanted as f64));
            self.set_gauge("belljar_pool_memory_bytes", labels(), sum(|pool| pool.memory_bytes as f64));
            self.set_gauge("belljar_pool_hits", labels(), sum(|pool| pool.hits as f64));
            self.set_gauge("belljar_pool_forks", labels(), sum(|pool| pool.forks as f64));
            self.set_gauge("belljar_pool_misses", labels(), sum(|pool| pool.misses as f64));
            self.set_gauge("belljar_pool_interpreters", labels(), sum(|pool| pool.zygotes as f64));
            self.set_gauge("belljar_pool_mismatches", labels(), sum(|pool| pool.mismatches as f64));
            let slowest = of().map(|pool| pool.refill_ms / 1_000.0).fold(0.0, f64::max);
            self.set_gauge("belljar_pool_refill_seconds", labels(), slowest);
        }
    }

    /// Sets the longest iterations of the launchers' event loops.
    pub(crate) fn set_loop_turns(&self, turns: &[LongestTurns]) {
        for turn in turns {
            let labels = || vec![Label::new("handler", turn.handler.clone())];
            let seconds = |name, longest: Duration| self.set_gauge(name, labels(), longest.as_secs_f64());
            seconds("belljar_launcher_longest_turn_cpu_seconds", turn.longest_cpu);
            seconds("belljar_launcher_longest_turn_wall_seconds", turn.longest_wall);
        }
    }

    /// Sets the layer metrics. The values are totals counted by the layer store.
    pub(crate) fn set_layer_metrics(&self, stock: &PackageStats) {
        let PackageStats { hits, fetched, built, failed, install_time: install, layers, bytes } = *stock;
        for (from, count) in
            [("shelf", hits), ("shared_cache", fetched), ("installed", built), ("nowhere", failed)]
        {
            self.set_counter("belljar_layers_total", vec![Label::new("from", from)], count);
        }
        self.set_gauge("belljar_layers_install_seconds", vec![], install.as_secs_f64());
        self.set_gauge("belljar_layers", vec![], layers as f64);
        self.set_gauge("belljar_layers_bytes", vec![], bytes as f64);
    }

    /// Sets a counter that is counted elsewhere.
    pub(crate) fn set_counter(&self, name: &'static str, labels: Vec<Label>, total: u64) {
        self.0.register_counter(&Key::from_parts(name, labels), &METADATA).absolute(total);
    }

    pub(crate) fn set_gauge(&self, name: &'static str, labels: Vec<Label>, value: f64) {
        self.0.register_gauge(&Key::from_parts(name, labels), &METADATA).set(value);
    }

    /// Returns all metrics in the Prometheus text format.
    pub(crate) fn render(&self) -> String {
        self.0.handle().render()
    }
}
