//! Every limit of one sandbox's egress, in one place.

use std::time::Duration;

/// Limits on the egress of one sandbox.
#[derive(Debug, Clone, Copy)]
pub struct EgressLimits {
    /// Concurrent connections. Further ones wait to be accepted.
    pub concurrent_connections: usize,
    /// Total connections.
    pub total_connections: u64,
    /// Total DNS lookups.
    pub total_lookups: u64,
    /// Total bytes in each direction.
    pub bytes_per_direction: u64,
    /// Size of what precedes the first byte for the destination: an HTTP head or a SOCKS5 greeting.
    pub head_bytes: usize,
    /// Time allowed for reading that head or greeting.
    pub head_timeout: Duration,
    /// Time allowed for resolving a host, and again for connecting to it.
    pub connect_timeout: Duration,
    /// Time a connection may stay idle.
    pub idle_timeout: Duration,
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self {
            concurrent_connections: 64,
            total_connections: 10_000,
            total_lookups: 10_000,
            bytes_per_direction: 4 << 30,
            head_bytes: 16 << 10,
            head_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(120),
        }
    }
}
