//! How far a copy is, for people who wait for it.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What is over sooner needs no bar.
const SHORT: Duration = Duration::from_millis(500);

/// A bar on a terminal, for what takes long; nothing elsewhere.
#[derive(Debug)]
pub(super) struct Meter {
    bar: ProgressBar,
    /// When it is shown; never where there is no terminal.
    from: Option<Instant>,
    bytes: u64,
}

impl Meter {
    /// Of so many bytes, where that is known.
    pub(super) fn new(total: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        let template = match total {
            Some(_) => "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
            None => "{spinner} {bytes}, {bytes_per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let from = std::io::stderr().is_terminal().then(|| Instant::now() + SHORT);
        Self { bar, from, bytes: 0 }
    }

    pub(super) fn moved(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.bar.set_position(self.bytes);
        if self.from.is_some_and(|from| Instant::now() >= from) {
            self.from = None;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Takes the bar away; gives how many bytes moved.
    pub(super) fn finish(&self) -> u64 {
        self.bar.finish_and_clear();
        self.bytes
    }
}
