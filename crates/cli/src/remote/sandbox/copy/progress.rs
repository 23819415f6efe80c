//! The progress bar of a copy.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Copies that are shorter show no bar.
const SHOW_AFTER: Duration = Duration::from_millis(500);

/// A progress bar for long copies, shown only on a terminal.
#[derive(Debug)]
pub(super) struct CopyProgress {
    bar: ProgressBar,
    /// When to show the bar; never without a terminal.
    from: Option<Instant>,
    bytes: u64,
}

impl CopyProgress {
    /// Creates a bar for this many bytes, if the total is known.
    pub(super) fn new(total: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        let template = match total {
            Some(_) => "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
            None => "{spinner} {bytes}, {bytes_per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let from = std::io::stderr().is_terminal().then(|| Instant::now() + SHOW_AFTER);
        Self { bar, from, bytes: 0 }
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.bar.set_position(self.bytes);
        if self.from.is_some_and(|from| Instant::now() >= from) {
            self.from = None;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Removes the bar and returns the number of bytes copied.
    pub(super) fn finish(&self) -> u64 {
        self.bar.finish_and_clear();
        self.bytes
    }
}
