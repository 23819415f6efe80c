//! How much was written since old results were last removed: a good part of what is kept does not wait for its time.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// The part of what is kept that may come on top of it.
const PART: u64 = 8;

/// Bytes since the last sweep.
#[derive(Debug)]
pub(crate) struct Written {
    bytes: AtomicU64,
    most: u64,
    much: Notify,
}

impl Written {
    /// Where so much is kept.
    pub(crate) fn new(kept: Option<u64>) -> Self {
        let most = kept.map_or(u64::MAX, |kept| (kept / PART).max(1));
        Self { bytes: AtomicU64::new(0), most, much: Notify::new() }
    }

    pub(crate) fn add(&self, bytes: usize) {
        if self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64 >= self.most {
            self.much.notify_one();
        }
    }

    /// Completes when it is much.
    pub(crate) async fn is_much(&self) {
        self.much.notified().await;
    }

    /// A sweep begins.
    pub(crate) fn begin_anew(&self) {
        self.bytes.store(0, Ordering::Relaxed);
    }
}
