//! Living sandboxes over HTTP: the real binary, real sandboxes, real sockets.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;

mod commands;
mod files;
mod findings;
mod life;
mod names;
mod network;
mod places;
mod ports;
mod terminal;

use std::time::{Duration, Instant};

/// A sleeping program that no other test of this machine has, not even the same one of another checkout.
fn own_sleep(number: u32) -> String {
    format!("sleep {number}.{}", std::process::id())
}

/// Waits for what is about to be.
fn wait_for(what: &str, mut seen: impl FnMut() -> bool) {
    let started = Instant::now();
    while !seen() {
        assert!(started.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
