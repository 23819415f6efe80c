//! Starts a retention sweep early, once ⅛ of the retention budget has been written.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Fraction of the retention budget that triggers a sweep.
const BUDGET_DIVISOR: u64 = 8;

/// Counts the bytes written since the last sweep.
#[derive(Debug)]
pub(crate) struct RetentionTrigger {
    bytes: AtomicU64,
    threshold_bytes: u64,
    reached: Notify,
}

impl RetentionTrigger {
    /// Creates a trigger for a retention budget in bytes; without a budget, it never fires.
    pub(crate) fn new(kept: Option<u64>) -> Self {
        let most = kept.map_or(u64::MAX, |kept| (kept / BUDGET_DIVISOR).max(1));
        Self { bytes: AtomicU64::new(0), threshold_bytes: most, reached: Notify::new() }
    }

    pub(crate) fn add(&self, bytes: usize) {
        if self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64 >= self.threshold_bytes {
            self.reached.notify_one();
        }
    }

    /// Completes when enough has been written to sweep.
    pub(crate) async fn reached_threshold(&self) {
        self.reached.notified().await;
    }

    /// Resets the counter at the start of a sweep.
    pub(crate) fn reset(&self) {
        self.bytes.store(0, Ordering::Relaxed);
    }
}
