//! The receive window of a channel: how much the peer may still send, and when it is granted more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::FrameSender;
use crate::protocol::{GuestFrame, WINDOW_BYTES};

/// The receiving side of one channel's credit.
#[derive(Debug)]
pub(crate) struct ReceiveWindow {
    channel: u32,
    left: AtomicU32,
    released: AtomicU32,
    credit_queued: AtomicBool,
}

impl ReceiveWindow {
    pub(crate) fn new(channel: u32) -> Arc<Self> {
        Arc::new(Self {
            channel,
            left: AtomicU32::new(WINDOW_BYTES),
            released: AtomicU32::new(0),
            credit_queued: AtomicBool::new(false),
        })
    }

    /// Accounts for a received frame; returns whether the peer had credit for it.
    pub(crate) fn try_receive(&self, cost: u32) -> bool {
        self.left.try_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(cost)).is_ok()
    }

    /// Returns credit for a consumed frame. Credit is granted in quarters of a window, and at most one grant
    /// is queued: a peer that sends but never reads cannot grow the queue.
    pub(crate) fn release(self: &Arc<Self>, cost: u32, outbox: &FrameSender) {
        let used = self.released.fetch_add(cost, Ordering::AcqRel) + cost;
        if used >= WINDOW_BYTES / 4 && !self.credit_queued.swap(true, Ordering::AcqRel) {
            outbox.queue_credit(Arc::clone(self));
        }
    }

    /// Creates the grant at the moment it is sent.
    pub(crate) fn take_credit_frame(&self) -> GuestFrame {
        self.credit_queued.store(false, Ordering::Release);
        let amount = self.released.swap(0, Ordering::AcqRel);
        self.left.fetch_add(amount, Ordering::AcqRel);
        GuestFrame::credit(self.channel, amount)
    }
}
