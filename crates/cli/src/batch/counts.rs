//! Counts the outcomes of a batch and formats its progress and summary lines.

use std::time::{Duration, Instant};

/// The outcome of one line of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineStatus {
    Succeeded,
    Failed,
    Cancelled,
    NotRun,
}

/// Outcomes counted so far.
#[derive(Debug)]
pub(super) struct BatchCounts {
    started: Instant,
    succeeded: u64,
    failed: u64,
    cancelled: u64,
    not_run: u64,
}

impl BatchCounts {
    pub(super) fn start() -> Self {
        Self { started: Instant::now(), succeeded: 0, failed: 0, cancelled: 0, not_run: 0 }
    }

    pub(super) fn count(&mut self, line: LineStatus) {
        *match line {
            LineStatus::Succeeded => &mut self.succeeded,
            LineStatus::Failed => &mut self.failed,
            LineStatus::Cancelled => &mut self.cancelled,
            LineStatus::NotRun => &mut self.not_run,
        } += 1;
    }

    /// Returns whether every line ran and succeeded.
    pub(super) fn is_clean(&self) -> bool {
        self.failed + self.cancelled + self.not_run == 0
    }

    /// Formats the summary: `3 ran (2 succeeded, 1 failed), 1 could not run; 0.21 s, 14.3 runs/s`
    pub(super) fn summary(&self) -> String {
        self.summary_after(self.started.elapsed())
    }

    fn summary_after(&self, elapsed: Duration) -> String {
        let mut parts = format!("{} succeeded, {} failed", self.succeeded, self.failed);
        if self.cancelled > 0 {
            parts += &format!(", {} canceled", self.cancelled);
        }
        let seconds = elapsed.as_secs_f64();
        let (ran, not_run, rate) = (self.ran(), self.not_run, self.rate(elapsed));
        format!("{ran} ran ({parts}), {not_run} could not run; {seconds:.2} s, {rate:.1} runs/s")
    }

    /// Formats the progress line, short enough for one line of a terminal.
    pub(super) fn progress(&self, running: usize) -> String {
        let others = self.failed + self.cancelled + self.not_run;
        let (done, rate) = (self.succeeded + others, self.rate(self.started.elapsed()));
        format!("{done} done, {others} without success; {running} running, {rate:.0} runs/s")
    }

    fn ran(&self) -> u64 {
        self.succeeded + self.failed + self.cancelled
    }

    fn rate(&self, elapsed: Duration) -> f64 {
        self.ran() as f64 / elapsed.as_secs_f64().max(1e-6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_lists_all_counts() {
        let mut tally = BatchCounts { succeeded: 2, failed: 1, not_run: 4, ..BatchCounts::start() };
        let summary = tally.summary_after(Duration::from_millis(1_500));
        assert_eq!(summary, "3 ran (2 succeeded, 1 failed), 4 could not run; 1.50 s, 2.0 runs/s");
        tally.cancelled = 3;
        assert!(tally.summary().starts_with("6 ran (2 succeeded, 1 failed, 3 canceled), 4 could not run"));
        assert!(BatchCounts::start().is_clean() && !tally.is_clean());
        assert!(BatchCounts::start().summary_after(Duration::ZERO).ends_with("0.00 s, 0.0 runs/s"));
    }
}
