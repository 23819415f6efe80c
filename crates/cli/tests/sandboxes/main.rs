//! Sandboxes over HTTP: the real binary, real sandboxes, real sockets.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;

mod commands;
mod disks;
mod files;
mod findings;
mod life;
mod names;
mod network;
mod places;
mod ports;
mod terminal;
mod writable_root;

use std::time::{Duration, Instant};

/// Returns a sleep duration that no other test on this machine uses, not even the same test of another
/// checkout.
fn own_sleep(number: u32) -> String {
    format!("sleep {number}.{}", std::process::id())
}

/// Waits for a condition.
fn wait_for(what: &str, mut seen: impl FnMut() -> bool) {
    let started = Instant::now();
    while !seen() {
        assert!(started.elapsed() < Duration::from_secs(60), "timed out waiting for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
