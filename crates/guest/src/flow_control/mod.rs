//! Shares one stream among many channels: a queue of frames, and credit in both directions.

mod credit;
mod frame_queue;
mod window;

pub(crate) use credit::SendCredit;
pub(crate) use frame_queue::{FrameSender, frame_queue, write_frames};
pub(crate) use window::ReceiveWindow;

/// Usual length of a frame's body, in bytes: small enough for fairness, large enough for throughput.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
