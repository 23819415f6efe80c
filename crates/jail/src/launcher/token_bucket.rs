//! A token bucket for rate limits: a burst, and then one more event per interval.

use std::time::{Duration, Instant};

/// A token bucket.
#[derive(Debug, Clone)]
pub(super) struct TokenBucket {
    tokens: u32,
    /// The time up to which the bucket has been refilled.
    refilled_until: Instant,
}

impl TokenBucket {
    /// Creates a full bucket.
    pub(super) fn new(capacity: u32, now: Instant) -> Self {
        Self { tokens: capacity, refilled_until: now }
    }

    /// Adds one token for every interval that has passed, up to `capacity`.
    pub(super) fn refill(&mut self, every: Duration, capacity: u32, now: Instant) {
        let passed = now.saturating_duration_since(self.refilled_until);
        let tokens = passed.as_nanos() / every.as_nanos().max(1);
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        self.tokens = self.tokens.saturating_add(tokens).min(capacity);
        if self.tokens == capacity {
            self.refilled_until = now;
        } else {
            self.refilled_until += every * tokens;
        }
    }

    /// Takes one token, if there is one.
    pub(super) fn take(&mut self) -> bool {
        let taken = self.tokens > 0;
        self.tokens -= u32::from(taken);
        taken
    }

    /// Returns how many tokens are left.
    pub(super) fn tokens_left(&self) -> u32 {
        self.tokens
    }

    /// Returns when a token can be taken: now, or when the next one is added.
    pub(super) fn next_token_at(&self, every: Duration, now: Instant) -> Instant {
        if self.tokens > 0 { now } else { (self.refilled_until + every).max(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_refill_one_per_interval_up_to_capacity() {
        let start = Instant::now();
        let every = Duration::from_millis(10);
        let mut bucket = TokenBucket::new(2, start);
        assert!(bucket.take() && bucket.take() && !bucket.take());
        assert_eq!(bucket.next_token_at(every, start), start + every);
        bucket.refill(every, 2, start + every / 2);
        assert!(!bucket.take(), "half an interval adds no token");
        bucket.refill(every, 2, start + every);
        assert!(bucket.take() && !bucket.take(), "the first half of the interval counts");
        bucket.refill(every, 2, start + 100 * every);
        assert_eq!(bucket.tokens_left(), 2);
    }
}
