//! What both halves need to share one line among many channels: a queue of frames, and credit both ways.

mod credit;
mod outbox;
mod window;

pub(crate) use credit::Credit;
pub(crate) use outbox::{Outbox, outbox, write_out};
pub(crate) use window::Window;

/// How many bytes go into one frame, mostly: small enough to take turns, large enough to be cheap.
pub(crate) const CHUNK: usize = 64 << 10;
