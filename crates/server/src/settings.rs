//! Settings of the service. Every value is a bound.

use std::time::Duration;

use belljar_engine::sandbox_handle::ArchiveLimits;
use belljar_store::Retention;

use crate::trace::TraceCollector;

/// Settings of the service.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Maximum number of concurrent executions. A quarter more is reserved for tenants within their fair
    /// share.
    pub concurrency: usize,
    /// Maximum number of queued executions of one tenant.
    pub queue: usize,
    /// Maximum number of queued executions of all tenants.
    pub queue_total: usize,
    /// Maximum number of live sandboxes. A quarter more is reserved for tenants within their fair share.
    pub sandboxes: usize,
    /// How long a sandbox may be unused whose request names no timeout.
    pub sandbox_idle: Duration,
    /// Interval at which the CPU time of sandboxes is recorded.
    pub sandbox_sweep: Duration,
    /// Longest life of a sandbox from its creation, however much it is used; the default of a request.
    pub sandbox_life: Duration,
    /// How long a terminal client may be silent. Four pings are sent in that time.
    pub terminal_silence: Duration,
    /// Size limits for unpacking an archive. The sandbox's disk limit also applies.
    pub archives: ArchiveLimits,
    /// Maximum size in bytes of the artifacts in a result together. Others are stored beside it and have a URL.
    pub inline_artifact_bytes: u64,
    /// Disk quota in bytes for the volumes and snapshots of a tenant that has no quota of its own.
    pub tenant_disk: u64,
    /// Maximum length in bytes of a body and of a line of a batch.
    pub max_body: usize,
    /// Maximum number of inputs of one request.
    pub max_inputs: usize,
    /// Memory in bytes for all arriving bodies together. Queued and running requests may use as much again.
    pub bodies_total: usize,
    /// Maximum number of concurrent executions of one batch, and of one request with many inputs.
    pub batch_jobs: usize,
    /// Maximum number of open connections.
    pub connections: usize,
    /// Maximum number of open event streams, WebSockets, batches and MCP streams of all tenants together.
    /// Never more than half of `connections`.
    pub streams: usize,
    /// Maximum number of such streams of one tenant.
    pub tenant_streams: usize,
    /// How long a client may take to send a request head, and how long an idle connection is kept open.
    pub head_timeout: Duration,
    /// How long a client may take to send a whole body or the next part of a batch or file, and to accept a
    /// write.
    pub body_timeout: Duration,
    /// How long running work may continue after shutdown is requested.
    pub drain: Duration,
    /// Whether callers need no key. Only for a server that is reachable from this machine alone.
    pub without_keys: bool,
    /// Origins of foreign web pages that may call the server, for example `https://app.example`. Its own
    /// always may.
    pub origins: Vec<String>,
    /// Trace collector, if traces are exported.
    pub collector: Option<TraceCollector>,
    /// Retention of results and of the audit log.
    pub retention: Retention,
}

impl Default for Settings {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            concurrency: (4 * cores).max(8),
            queue: 256,
            queue_total: 4_096,
            sandboxes: 100,
            sandbox_idle: Duration::from_secs(3_600),
            sandbox_sweep: Duration::from_secs(300),
            sandbox_life: Duration::from_secs(24 * 3_600),
            terminal_silence: Duration::from_secs(60),
            archives: ArchiveLimits::default(),
            inline_artifact_bytes: 4 << 20,
            tenant_disk: 10 << 30,
            max_body: 32 << 20,
            max_inputs: 10_000,
            bodies_total: 256 << 20,
            batch_jobs: (2 * cores).max(4),
            connections: 16_384,
            streams: 8_192,
            tenant_streams: 1_024,
            head_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(30),
            without_keys: false,
            origins: Vec::new(),
            collector: None,
            retention: Retention {
                max_age: Some(Duration::from_secs(7 * 24 * 3_600)),
                max_bytes: Some(1 << 30),
                audit_age: Some(Duration::from_secs(365 * 24 * 3_600)),
            },
        }
    }
}
