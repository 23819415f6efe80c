//! Every limit of one sandbox's egress, in one place.

use std::time::Duration;

/// Limits on the egress of one sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Concurrent connections. Further ones wait to be accepted.
    pub connections_at_once: usize,
    /// Total connections.
    pub connections: u64,
    /// Total DNS lookups.
    pub lookups: u64,
    /// Total bytes in each direction.
    pub bytes: u64,
    /// Size of what precedes the first byte for the destination: an HTTP head or a SOCKS5 greeting.
    pub head_bytes: usize,
    /// Time allowed for reading that head or greeting.
    pub head_time: Duration,
    /// Time allowed for resolving a host, and again for connecting to it.
    pub connect_time: Duration,
    /// Time a connection may stay idle.
    pub idle_time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections_at_once: 64,
            connections: 10_000,
            lookups: 10_000,
            bytes: 4 << 30,
            head_bytes: 16 << 10,
            head_time: Duration::from_secs(10),
            connect_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(120),
        }
    }
}
