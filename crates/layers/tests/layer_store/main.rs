//! Tests the layer store on a real disk and with real processes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod archives;
mod common;
mod hostile;
mod processes;
mod pruning;
mod publishing;
mod shared_cache;
mod tampering;
