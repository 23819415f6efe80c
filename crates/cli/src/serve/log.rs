//! The log: on standard error, for people on a terminal and as JSON elsewhere. User code, input and keys are never in it.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;

/// Everything from now on is logged, up to this level.
pub(super) fn start(level: LevelFilter) {
    let terminal = io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr).with_ansi(terminal);
    // Whoever started a log before (a test) keeps it.
    let _ =
        if terminal { log.with_target(false).try_init() } else { log.json().flatten_event(true).try_init() };
}
