//! The leak test: after hundreds of runs of every kind, good and bad, the host is in the same state as
//! before.
//!
//! Namespaces are not counted separately, because processes, descriptors and mounts keep them alive, and
//! those are.
#![cfg_attr(
    target_os = "linux",
    expect(clippy::print_stdout, reason = "a skipped case says why, and what was run is counted")
)]

#[cfg(target_os = "linux")]
mod common;
#[cfg(target_os = "linux")]
#[path = "leaks"]
mod suite {
    pub(crate) mod mixed;
    pub(crate) mod resident;
    pub(crate) mod warm;
}

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    suite::mixed::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
