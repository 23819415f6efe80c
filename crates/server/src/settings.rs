//! What an administrator can set about the service. Every value is a bound.

use std::time::Duration;

use belljar_engine::living::ArchiveLimits;
use belljar_store::Retention;

use crate::trace::Collector;

/// How the service behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Executions at one time. A quarter more are a reserve for tenants within their fair share.
    pub concurrency: usize,
    /// Executions of one tenant that may wait for their turn.
    pub queue: usize,
    /// Executions of all tenants that may wait.
    pub queue_total: usize,
    /// Sandboxes at one time. A quarter more are a reserve for tenants within their fair share.
    pub sandboxes: usize,
    /// How long nobody may use a sandbox before its time is over.
    pub sandbox_idle: Duration,
    /// How often sandboxes are looked after: those that are idle, and what all of them have used.
    pub sandbox_sweep: Duration,
    /// How long any sandbox may live, however often it is extended or resumed.
    pub sandbox_life: Duration,
    /// How long a terminal's client may say nothing, not even to a ping, of which there are four in that time.
    pub terminal_silence: Duration,
    /// What an archive may grow to when it is unpacked; no more than the sandbox's disk in any case.
    pub archives: ArchiveLimits,
    /// What the volumes and snapshots of a tenant may take together that has no quota of its own.
    pub tenant_disk: u64,
    /// The longest body, and the longest line of a batch.
    pub max_body: usize,
    /// What all bodies that arrive may hold together; the requests that wait or run may hold as much again.
    pub bodies_total: usize,
    /// Executions of one batch at one time.
    pub batch_jobs: usize,
    /// Connections at one time.
    pub connections: usize,
    /// Event streams, WebSockets, batches and MCP streams at one time, of all tenants together; no more than half of the
    /// connections in any case.
    pub streams: usize,
    /// The same of one tenant.
    pub tenant_streams: usize,
    /// How long a client may take for a request's head, and how long an idle connection is kept.
    pub head_timeout: Duration,
    /// How long a client may take for a whole body, for the next piece of a batch or a file, and for reading what it is sent.
    pub body_timeout: Duration,
    /// How long running work may go on after the request to end.
    pub drain: Duration,
    /// Whether callers need no key. Only for a server that nobody but this machine reaches.
    pub without_keys: bool,
    /// Web pages from elsewhere that may call it, by their origins, such as `https://app.example`; its own always may.
    pub origins: Vec<String>,
    /// Where traces go.
    pub collector: Option<Collector>,
    /// What is kept of finished work.
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
            tenant_disk: 10 << 30,
            max_body: 32 << 20,
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
