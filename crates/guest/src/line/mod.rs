//! Shares one stream among many channels: a queue of frames, and credit in both directions.

mod credit;
mod outbox;
mod window;

pub(crate) use credit::Credit;
pub(crate) use outbox::{Outbox, outbox, write_out};
pub(crate) use window::Window;

/// Usual length of a frame's body, in bytes: small enough for fairness, large enough for throughput.
pub(crate) const CHUNK: usize = 64 << 10;
