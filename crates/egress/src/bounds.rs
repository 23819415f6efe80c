//! Everything that has a bound, in one place.

use std::time::Duration;

/// What one sandbox may have of the way out.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections at one time. More wait to be accepted.
    pub connections_at_once: usize,
    /// Connections in all.
    pub connections: u64,
    /// Lookups by DNS in all.
    pub lookups: u64,
    /// Bytes in all, of each direction.
    pub bytes: u64,
    /// What comes before the first byte for the host: a head, or a greeting.
    pub head_bytes: usize,
    /// How long that may take.
    pub head_time: Duration,
    /// How long a host may take to be found, and again to be connected to.
    pub connect_time: Duration,
    /// How long a connection may be silent.
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
