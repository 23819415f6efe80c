//! The progress line on a terminal, erased when the benchmark ends.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Minimum time between two updates, because drawing takes time from what is measured.
const UPDATE_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct ProgressLine {
    wanted: bool,
    drawn: Option<Instant>,
}

impl ProgressLine {
    pub(crate) fn new(quiet: bool) -> Self {
        Self { wanted: !quiet && std::io::stderr().is_terminal(), drawn: None }
    }

    pub(crate) fn show(&mut self, text: &str) {
        if self.wanted && self.drawn.is_none_or(|drawn| drawn.elapsed() >= UPDATE_INTERVAL) {
            // A closed standard error does not stop the benchmark.
            let _ = write!(anstream::stderr().lock(), "\r\x1b[K{text}");
            self.drawn = Some(Instant::now());
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(anstream::stderr().lock(), "\r\x1b[K");
        }
    }
}
