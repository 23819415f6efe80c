//! Living sandboxes over HTTP: the real binary, real sandboxes, real sockets.
#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;

mod life;
