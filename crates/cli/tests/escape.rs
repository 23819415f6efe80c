//! The escape suite: each program in `tests/escape` is an attack or abuse, with its expected ending in its
//! header. A program that is expected to succeed judges itself and prints `HELD` or `BROKEN` on its last
//! line. Attacks that only the host can judge are in `escape/judges.rs`; those that need two sandboxes or the
//! raw output are beside it.
//!
//! ```text
//! # expect: succeeded                    the last line must be HELD
//! # expect: limit_exceeded memory        a limit, by its name
//! # expect: failed SIGKILL               a signal, by its name
//! # with: --memory 64M                   further flags
//! # needs: cgroup.memory                 skipped with a message if the receipt lacks this layer
//! ```
#![cfg_attr(
    target_os = "linux",
    expect(
        clippy::print_stdout,
        reason = "a skipped case says why, and the count of system calls is printed"
    )
)]

#[cfg(target_os = "linux")]
mod common;
#[cfg(target_os = "linux")]
#[path = "../../providers/tests/conformance/dockerd.rs"]
#[allow(dead_code, reason = "tests of the provider use the rest")]
mod dockerd;
#[cfg(target_os = "linux")]
#[path = "escape"]
mod suite {
    pub(crate) mod docker;
    pub(crate) mod in_sandboxes;
    pub(crate) mod judges;
    pub(crate) mod neighbours;
    pub(crate) mod programs;
    pub(crate) mod results;
    pub(crate) mod syscalls;
}

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    suite::programs::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
