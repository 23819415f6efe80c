//! The escape suite: each program in `tests/escape` is an attack or an abuse, with the ending that it must have in
//! its header. A program that ends well judges itself, and its last line says `HELD` or `BROKEN`; what only the host
//! can judge is in `escape/judges.rs`, and what takes two sandboxes or the binary's own output beside it.
//!
//! ```text
//! # expect: succeeded                    the last line must say HELD
//! # expect: limit_exceeded memory        a limit, by its name
//! # expect: failed SIGKILL               a signal, by its name
//! # with: --memory 64M                   further flags
//! # needs: cgroup.memory                 passed over, and said so, where the receipt lacks this layer
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
