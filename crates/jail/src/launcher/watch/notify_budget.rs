//! Rate limit for seccomp notifications of sandboxes: a maximum per turn of the event loop and per second,
//! shared equally among the sandboxes. A caller blocks until it is answered, so a flood slows down only
//! itself.

use std::time::{Duration, Instant};

use crate::launcher::token_bucket::TokenBucket;

/// Maximum notifications handled in one turn of the event loop.
pub(crate) const MAX_PER_TURN: u32 = 16;
/// Notifications are handled in batches, so that a flood wakes the launcher a hundred times a second and not
/// a thousand.
const BATCH: u32 = 8;
const BURST_BATCHES: u32 = 8;
const BATCH_INTERVAL: Duration = Duration::from_millis(10);
/// Time between notifications of one sandbox after its burst, if it is the only sandbox.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The budget of notifications that all sandboxes share.
#[derive(Debug)]
pub(crate) struct NotifyBudget {
    batches: TokenBucket,
    left_in_batch: u32,
    sandboxes: u32,
}

impl NotifyBudget {
    pub(crate) fn new(now: Instant) -> Self {
        Self { batches: TokenBucket::new(BURST_BATCHES, now), left_in_batch: BATCH, sandboxes: 1 }
    }

    /// Begins a turn of the event loop with this number of sandboxes.
    pub(crate) fn begin_turn(&mut self, jails: usize, now: Instant) {
        self.sandboxes = u32::try_from(jails).unwrap_or(u32::MAX).clamp(1, 1 << 16);
        self.batches.refill(BATCH_INTERVAL, BURST_BATCHES, now);
        if self.left_in_batch == 0 && self.batches.take() {
            self.left_in_batch = BATCH;
        }
    }

    /// Takes one notification from the budget. Returns `false` if it is exhausted.
    pub(super) fn take(&mut self) -> bool {
        if self.left_in_batch == 0 && self.batches.take() {
            self.left_in_batch = BATCH;
        }
        let taken = self.left_in_batch > 0;
        self.left_in_batch -= u32::from(taken);
        taken
    }

    /// Returns until when the budget is exhausted, if it is.
    pub(super) fn exhausted_until(&self, now: Instant) -> Option<Instant> {
        let open = self.left_in_batch > 0 || self.batches.tokens_left() > 0;
        (!open).then(|| self.batches.next_token_at(BATCH_INTERVAL, now))
    }

    /// Returns how many sandboxes share the budget.
    pub(crate) fn sandboxes(&self) -> u32 {
        self.sandboxes
    }

    /// Returns the time between notifications of each sandbox.
    pub(super) fn interval(&self) -> Duration {
        MIN_INTERVAL.max(BATCH_INTERVAL / BATCH * self.sandboxes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_are_limited_in_total_and_per_sandbox() {
        let start = Instant::now();
        let mut budget = NotifyBudget::new(start);
        let mut handled = 0;
        for turn in 0..10_000 {
            // One second, in turns of a tenth of a millisecond.
            let now = start + Duration::from_micros(100) * turn;
            budget.begin_turn(400, now);
            handled += (0..MAX_PER_TURN).filter(|_| budget.take()).count() as u32;
        }
        let (at_once, in_a_second) = (BATCH * (BURST_BATCHES + 1), BATCH * 100);
        assert!((in_a_second..=in_a_second + at_once).contains(&handled), "{handled}");
        assert_eq!(
            budget.interval() / 400,
            Duration::from_micros(1_250),
            "each of 400 sandboxes has one 400th"
        );
        budget.begin_turn(2, start);
        assert_eq!(budget.interval(), MIN_INTERVAL);
    }
}
