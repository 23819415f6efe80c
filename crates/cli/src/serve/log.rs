//! The log: on standard error, for people on a terminal and as JSON elsewhere. User code, input and keys are never in it.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Everything from now on is logged, up to this level.
pub(super) fn start(level: LevelFilter) {
    let terminal = io::stderr().is_terminal();
    // It would log whole requests, and so the code of users.
    let all_but = Targets::new().with_default(level).with_target("rmcp", LevelFilter::OFF);
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr).with_ansi(terminal);
    // Whoever started a log before (a test) keeps it.
    let _ = if terminal {
        log.with_target(false).finish().with(all_but).try_init()
    } else {
        log.json().flatten_event(true).finish().with(all_but).try_init()
    };
}
