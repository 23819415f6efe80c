//! Tests a real guest over a real socket. It is PID 1 of its own namespaces if the host allows that.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failed test")]

mod archives;
mod files;
mod jailed;
mod life;
mod limits;
mod ports;
mod processes;
mod stranger;
mod terminals;
mod watches;
mod world;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    belljar_jail::launcher::run_if_asked();
    belljar_guest::run_if_asked();
    let trials: Vec<Trial> = [
        archives::trials(),
        files::trials(),
        jailed::trials(),
        life::trials(),
        limits::trials(),
        ports::trials(),
        processes::trials(),
        stranger::trials(),
        terminals::trials(),
        watches::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
