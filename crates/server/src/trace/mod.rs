//! Traces for an OpenTelemetry collector, if one is configured: one span per request and per execution.
//!
//! ```text
//! middleware: Request ─┬─▶ answered ─▶ span ─┐
//!                      └─▶ Caller ─▶ execution ─▶ span ─▶ queue ─▶ export.rs: POST /v1/traces (OTLP, JSON)
//! ```
//!
//! - Tracing never blocks: a span that does not fit in the queue is dropped and counted.
//! - Spans contain words from closed lists, ids, tenants and times, but never code, input, output, metadata
//!   or keys.
//! - A caller's `traceparent` is continued. If its sampled flag is off, nothing is recorded.
//!
//! Two kinds of spans do not justify the dependencies of the OpenTelemetry SDK, so they are encoded here
//! (`json.rs`) and sent over plain HTTP.

mod export;
mod json;
mod parent;

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, Method, StatusCode};
use belljar_store::TenantName;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub use export::TraceCollector;
pub(crate) use json::{AttributeValue, SpanKind, TraceSpan};
pub(crate) use parent::TraceContext;

/// Maximum number of queued spans.
const MAX_QUEUED_SPANS: usize = 4_096;
/// How long exporting the last spans may take on shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

tokio::task_local! {
    static CURRENT: Arc<TracedRequest>;
}

/// Records spans and queues them for export.
#[derive(Debug)]
pub(crate) struct Tracer {
    queue: mpsc::Sender<TraceSpan>,
    dropped: Arc<AtomicU64>,
    task: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

/// A traced request.
#[derive(Debug)]
pub(crate) struct TracedRequest {
    context: TraceContext,
    parent: Option<[u8; 8]>,
    started: SystemTime,
    tenant: OnceLock<TenantName>,
}

impl Tracer {
    pub(crate) fn new(collector: TraceCollector) -> Self {
        let (queue, spans) = mpsc::channel(MAX_QUEUED_SPANS);
        let (stop, stopped) = oneshot::channel();
        let dropped = Arc::default();
        let task = tokio::spawn(export::run(collector, spans, stopped, Arc::clone(&dropped)));
        Self { queue, dropped, task: Mutex::new(Some((stop, task))) }
    }

    /// Returns the number of dropped spans.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Exports queued spans, within bounded time.
    pub(crate) async fn close(&self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((stop, mut task)) = task else { return };
        // Fails only if the task has already ended.
        let _ = stop.send(());
        if timeout(FLUSH_TIMEOUT, &mut task).await.is_err() {
            task.abort();
        }
    }

    pub(crate) fn request(&self, headers: &HeaderMap) -> Arc<TracedRequest> {
        let (context, parent) = TraceContext::from_headers(headers);
        Arc::new(TracedRequest { context, parent, started: SystemTime::now(), tenant: OnceLock::new() })
    }

    pub(crate) fn answered(
        &self,
        request: &TracedRequest,
        id: String,
        method: &Method,
        route: &str,
        status: StatusCode,
    ) {
        let method = method_name(method);
        let mut attributes = vec![
            ("http.request.method", method.into()),
            ("http.route", route.to_owned().into()),
            ("http.response.status_code", AttributeValue::Whole(status.as_u16().into())),
            ("belljar.request_id", id.into()),
        ];
        attributes.extend(request.tenant.get().map(|tenant| ("belljar.tenant", tenant.to_string().into())));
        self.send(TraceSpan {
            context: request.context,
            parent: request.parent,
            name: format!("{method} {route}"),
            kind: SpanKind::Server,
            started: request.started,
            ended: SystemTime::now(),
            failed: status.is_server_error(),
            attributes,
        });
    }

    /// Queues a span for export.
    pub(crate) fn send(&self, span: TraceSpan) {
        if span.context.recorded && self.queue.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl TracedRequest {
    /// Runs a future as part of this request.
    pub(crate) async fn within<T>(self: &Arc<Self>, work: impl Future<Output = T>) -> T {
        CURRENT.scope(Arc::clone(self), work).await
    }
}

/// Sets the tenant of the current request, and returns the context for its child spans.
pub(crate) fn set_tenant(tenant: &TenantName) -> Option<TraceContext> {
    let current = |request: &Arc<TracedRequest>| {
        let _ = request.tenant.set(tenant.clone());
        request.context
    };
    CURRENT.try_with(current).ok()
}

/// Maps a method to a known name, because a caller may send any method.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "_OTHER",
    }
}
