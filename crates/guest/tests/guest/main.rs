//! Tests a real guest over a real socket. It is PID 1 of its own namespaces if the host allows that.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failed test")]

mod archives;
mod files;
mod fixture;
mod invalid_hosts;
mod jailed;
mod lifecycle;
mod limits;
mod ports;
mod processes;
mod terminals;
mod watches;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    belljar_jail::launcher::run_if_asked();
    belljar_guest::run_if_asked();
    let trials: Vec<Trial> = [
        archives::trials(),
        files::trials(),
        jailed::trials(),
        lifecycle::trials(),
        limits::trials(),
        ports::trials(),
        processes::trials(),
        invalid_hosts::trials(),
        terminals::trials(),
        watches::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
