//! The server under load: killed during much work, thousands of executions of every kind, hundreds of
//! sandboxes. Each case inspects the whole host before and after.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "prints measurements, and why a case is skipped"
)]

mod common;
#[path = "survival"]
mod suite {
    pub(crate) mod crowd;
    pub(crate) mod escaped;
    pub(crate) mod hangups;
    pub(crate) mod killed;
    pub(crate) mod neighbors;
    pub(crate) mod soak;
    pub(crate) mod timeouts;
}

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};

/// Timeout for a busy machine. The actual durations are printed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Selects a size: for the first tier, for `./test --all`, or for the groups of the second tier.
pub(crate) fn sized<T>(small: T, all: T, full: T) -> T {
    let is = |name: &str, wanted: &str| std::env::var(name).is_ok_and(|value| value == wanted);
    if is("BELLJAR_TEST_SIZE", "full") {
        full
    } else if is("BELLJAR_TEST_ALL", "1") {
        all
    } else {
        small
    }
}

/// Returns a percentile of the samples.
pub(crate) fn percentile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    if let Some(why) = common::unusable() {
        eprintln!("skipped: {why}");
        return if common::is_root() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let own_world = common::own_world::enter();
    let case = |name: &str, run: fn()| {
        Trial::test(name, move || {
            run();
            Ok(())
        })
    };
    let trials = vec![
        case("a_server_killed_amid_much_work_loses_nothing", suite::killed::server_killed_under_load),
        case("a_process_left_in_a_group_ends_with_it", suite::escaped::escaped_process_ends_with_its_run),
        case("a_process_left_by_a_killed_launcher_is_swept", suite::escaped::ends_with_the_next_start),
        case("executions_of_every_kind_leave_nothing", suite::soak::soak_with_every_kind_of_run),
        case("many_sandboxes_wait_in_little_memory", suite::crowd::idle_sandboxes_stay_cheap),
        case("time_outs_of_a_crowd_are_kept", suite::timeouts::many_concurrent_timeouts),
        case("clients_that_hang_up_leave_nothing", suite::hangups::disconnects_leak_nothing),
        case(
            "an_honest_tenant_is_served_beside_a_hostile_one",
            suite::neighbors::tenants_are_served_beside_hostile_ones,
        ),
    ];
    let ended = libtest_mimic::run(&arguments, trials);
    drop(own_world);
    ended.exit_code()
}
