//! A token bucket for rate limits: a burst, and then one more event per interval.

use std::time::{Duration, Instant};

/// A token bucket.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    left: u32,
    /// The time up to which the bucket has been refilled.
    refilled: Instant,
}

impl Bucket {
    /// Creates a full bucket.
    pub(super) fn new(capacity: u32, now: Instant) -> Self {
        Self { left: capacity, refilled: now }
    }

    /// Adds one token for every interval that has passed, up to `capacity`.
    pub(super) fn refill(&mut self, every: Duration, capacity: u32, now: Instant) {
        let passed = now.saturating_duration_since(self.refilled);
        let tokens = passed.as_nanos() / every.as_nanos().max(1);
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(tokens).min(capacity);
        if self.left == capacity {
            self.refilled = now;
        } else {
            self.refilled += every * tokens;
        }
    }

    /// Takes one token, if there is one.
    pub(super) fn take(&mut self) -> bool {
        let taken = self.left > 0;
        self.left -= u32::from(taken);
        taken
    }

    /// Returns how many tokens are left.
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// Returns when a token can be taken: now, or when the next one is added.
    pub(super) fn next(&self, every: Duration, now: Instant) -> Instant {
        if self.left > 0 { now } else { (self.refilled + every).max(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_one_by_one_and_no_more_than_fit() {
        let start = Instant::now();
        let every = Duration::from_millis(10);
        let mut bucket = Bucket::new(2, start);
        assert!(bucket.take() && bucket.take() && !bucket.take());
        assert_eq!(bucket.next(every, start), start + every);
        bucket.refill(every, 2, start + every / 2);
        assert!(!bucket.take(), "half an interval adds no token");
        bucket.refill(every, 2, start + every);
        assert!(bucket.take() && !bucket.take(), "the first half of the interval counts");
        bucket.refill(every, 2, start + 100 * every);
        assert_eq!(bucket.left(), 2);
    }
}
