//! The conformance suite: what every provider must do, run against the real thing.
//!
//! This binary is also the launcher, so its `main` checks for that before anything else.

mod cases;
mod docker;
mod docker_failures;
mod docker_mounts;
mod docker_prestart;
mod dockerd;
mod endings;
mod fixture;
mod long_lived;
mod remote;

use std::process::ExitCode;

use belljar_engine::warm::WarmPoolMode;
use fixture::{Fixture, Verdict};
use libtest_mimic::{Arguments, Trial};
use long_lived::shutdown;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    belljar_providers::native::run_if_asked();
    for (variable, alone) in [
        (shutdown::LEAKS_ONLY, shutdown::leaks as fn() -> _),
        (shutdown::KILLED_ONLY, shutdown::killed),
        (shutdown::FAULT_ONLY, shutdown::fault),
    ] {
        if std::env::var_os(variable).is_some() {
            return alone_in_a_process(alone());
        }
    }
    let arguments = Arguments::from_args();
    // All cases must hold at every warming level.
    let fixtures =
        [("native", WarmPoolMode::Off), ("fork", WarmPoolMode::Fork), ("pool", WarmPoolMode::Pool)];
    let fixtures = fixtures.map(|(name, warming)| (name, Fixture::native(warming)));
    let mut trials = Vec::new();
    for (kind, fixture) in &fixtures {
        for (name, case) in cases::all().into_iter().chain(endings::all()) {
            let fixture = fixture.clone();
            trials.push(Trial::test(format!("{kind}::{name}"), move || case(&fixture).map_err(Into::into)));
        }
    }
    trials.extend(long_lived::trials(&fixtures[0].1));
    trials.extend(remote::trials());
    let docker = docker::DockerFixtures::start();
    trials.extend(docker.trials());
    let conclusion = libtest_mimic::run(&arguments, trials);
    docker.end();
    fixtures.iter().for_each(|(_, fixture)| fixture.shut_down());
    conclusion.exit_code()
}

/// Runs a case that needs a separate process, and reports its verdict.
#[expect(clippy::print_stderr, reason = "the parent process reads it")]
fn alone_in_a_process(verdict: Verdict) -> ExitCode {
    match verdict {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
