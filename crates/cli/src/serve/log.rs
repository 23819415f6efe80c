//! Logging on standard error: text on a terminal, JSON elsewhere. It never contains user code, input or keys.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging up to this level.
pub(super) fn start(level: LevelFilter) {
    let terminal = io::stderr().is_terminal();
    // `rmcp` would log whole requests, which contain user code.
    let all_but = Targets::new().with_default(level).with_target("rmcp", LevelFilter::OFF);
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr).with_ansi(terminal);
    // A subscriber that is already set (by a test) is kept.
    let _ = if terminal {
        log.with_target(false).finish().with(all_but).try_init()
    } else {
        log.json().flatten_event(true).finish().with(all_but).try_init()
    };
}
