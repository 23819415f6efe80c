//! Rate limit for seccomp notifications of sandboxes: a maximum per turn of the event loop and per second,
//! shared equally among the sandboxes. A caller blocks until it is answered, so a flood slows down only
//! itself.

use std::time::{Duration, Instant};

use super::pace::Bucket;

/// Maximum notifications handled in one turn of the event loop.
pub(super) const MAX_IN_A_TURN: u32 = 16;
/// Notifications are handled in batches, so that a flood wakes the launcher a hundred times a second and not
/// a thousand.
const BATCH: u32 = 8;
const BATCHES_AT_ONCE: u32 = 8;
const BETWEEN_BATCHES: Duration = Duration::from_millis(10);
/// Time between notifications of one sandbox after its burst, if it is the only sandbox.
const PACE: Duration = Duration::from_millis(100);

/// The budget of notifications that all sandboxes share.
#[derive(Debug)]
pub(super) struct Hearing {
    batches: Bucket,
    left: u32,
    jails: u32,
}

impl Hearing {
    pub(super) fn new(now: Instant) -> Self {
        Self { batches: Bucket::new(BATCHES_AT_ONCE, now), left: BATCH, jails: 1 }
    }

    /// Begins a turn of the event loop with this number of sandboxes.
    pub(super) fn begin_turn(&mut self, jails: usize, now: Instant) {
        self.jails = u32::try_from(jails).unwrap_or(u32::MAX).clamp(1, 1 << 16);
        self.batches.refill(BETWEEN_BATCHES, BATCHES_AT_ONCE, now);
        if self.left == 0 && self.batches.take() {
            self.left = BATCH;
        }
    }

    /// Takes one notification from the budget. Returns `false` if it is exhausted.
    pub(super) fn take(&mut self) -> bool {
        if self.left == 0 && self.batches.take() {
            self.left = BATCH;
        }
        let taken = self.left > 0;
        self.left -= u32::from(taken);
        taken
    }

    /// Returns until when the budget is exhausted, if it is.
    pub(super) fn closed_until(&self, now: Instant) -> Option<Instant> {
        let open = self.left > 0 || self.batches.left() > 0;
        (!open).then(|| self.batches.next(BETWEEN_BATCHES, now))
    }

    /// Returns how many sandboxes share the budget.
    pub(super) fn jails(&self) -> u32 {
        self.jails
    }

    /// Returns the time between notifications of each sandbox.
    pub(super) fn pace(&self) -> Duration {
        PACE.max(BETWEEN_BATCHES / BATCH * self.jails)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_jails_together_are_heard_so_often_and_each_has_its_share() {
        let start = Instant::now();
        let mut hearing = Hearing::new(start);
        let mut heard = 0;
        for turn in 0..10_000 {
            // One second, in turns of a tenth of a millisecond.
            let now = start + Duration::from_micros(100) * turn;
            hearing.begin_turn(400, now);
            heard += (0..MAX_IN_A_TURN).filter(|_| hearing.take()).count() as u32;
        }
        let (at_once, in_a_second) = (BATCH * (BATCHES_AT_ONCE + 1), BATCH * 100);
        assert!((in_a_second..=in_a_second + at_once).contains(&heard), "{heard}");
        assert_eq!(hearing.pace() / 400, Duration::from_micros(1_250), "each of 400 sandboxes has one 400th");
        hearing.begin_turn(2, start);
        assert_eq!(hearing.pace(), PACE);
    }
}
