//! Living sandboxes over HTTP: the real binary, real sandboxes, real sockets.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;

mod life;
mod places;
