//! The server at size: killed amid much work, thousands of executions of every kind, hundreds of sandboxes. Each case
//! looks at the whole host before and after.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what was measured is told, and why nothing was"
)]

mod common;
#[path = "survival"]
mod suite {
    pub(crate) mod crowd;
    pub(crate) mod killed;
    pub(crate) mod soak;
}

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Whether there is time for everything.
pub(crate) fn everything() -> bool {
    std::env::var("BELLJAR_TEST_ALL").is_ok_and(|all| all == "1")
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    if let Some(why) = common::unusable() {
        eprintln!("skipped: {why}");
        return if common::is_root() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let case = |name: &str, run: fn()| {
        Trial::test(name, move || {
            run();
            Ok(())
        })
    };
    let trials = vec![
        case("a_server_killed_amid_much_work_loses_nothing", suite::killed::amid_much_work),
        case("executions_of_every_kind_leave_nothing", suite::soak::of_every_kind),
        case("many_sandboxes_wait_in_little_memory", suite::crowd::waits),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}
