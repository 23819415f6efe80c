//! The conformance suite: what every provider must do, run against the real thing.
//!
//! This binary is its own launcher, so it has a `main` of its own that says so before anything else happens.

mod cases;
mod endings;
mod world;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use world::World;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    belljar_jail::launcher::run_if_asked();
    let arguments = Arguments::from_args();
    let world = World::native();
    let cases = cases::all().into_iter().chain(endings::all());
    let trials = cases.map(|(name, case)| {
        let world = world.clone();
        Trial::test(format!("native::{name}"), move || case(&world).map_err(Into::into))
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    world.shut_down();
    conclusion.exit_code()
}
