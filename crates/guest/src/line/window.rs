//! How much the other side may still send on a channel, and when it is told that it may send more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::Outbox;
use crate::protocol::{Frame, WINDOW};

/// The receiving side of one channel's credit.
#[derive(Debug)]
pub(crate) struct Window {
    channel: u32,
    left: AtomicU32,
    used: AtomicU32,
    told: AtomicBool,
}

impl Window {
    pub(crate) fn new(channel: u32) -> Arc<Self> {
        Arc::new(Self {
            channel,
            left: AtomicU32::new(WINDOW),
            used: AtomicU32::new(0),
            told: AtomicBool::new(false),
        })
    }

    /// A frame came; whether it was allowed to.
    pub(crate) fn came(&self, cost: u32) -> bool {
        self.left.try_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(cost)).is_ok()
    }

    /// What came has been used up. The sender is told in quarters of a window, and at most one such message waits
    /// in the queue: a peer that sends and never reads makes it no longer.
    pub(crate) fn used(self: &Arc<Self>, cost: u32, outbox: &Outbox) {
        let used = self.used.fetch_add(cost, Ordering::AcqRel) + cost;
        if used >= WINDOW / 4 && !self.told.swap(true, Ordering::AcqRel) {
            outbox.credit(Arc::clone(self));
        }
    }

    /// The message, at the moment in which it is sent.
    pub(crate) fn message(&self) -> Frame {
        self.told.store(false, Ordering::Release);
        let amount = self.used.swap(0, Ordering::AcqRel);
        self.left.fetch_add(amount, Ordering::AcqRel);
        Frame::credit(self.channel, amount)
    }
}
