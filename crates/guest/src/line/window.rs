//! The receive window of a channel: how much the peer may still send, and when it is granted more.

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

    /// Accounts for a received frame; returns whether the peer had credit for it.
    pub(crate) fn came(&self, cost: u32) -> bool {
        self.left.try_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(cost)).is_ok()
    }

    /// Returns credit for a consumed frame. Credit is granted in quarters of a window, and at most one grant
    /// is queued: a peer that sends but never reads cannot grow the queue.
    pub(crate) fn used(self: &Arc<Self>, cost: u32, outbox: &Outbox) {
        let used = self.used.fetch_add(cost, Ordering::AcqRel) + cost;
        if used >= WINDOW / 4 && !self.told.swap(true, Ordering::AcqRel) {
            outbox.credit(Arc::clone(self));
        }
    }

    /// Creates the grant at the moment it is sent.
    pub(crate) fn message(&self) -> Frame {
        self.told.store(false, Ordering::Release);
        let amount = self.used.swap(0, Ordering::AcqRel);
        self.left.fetch_add(amount, Ordering::AcqRel);
        Frame::credit(self.channel, amount)
    }
}
