//! The credit left for sending on a channel.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::protocol::{FRAME_COST, WINDOW_BYTES};

/// Minimum size of a frame, unless less is left to send. Credit comes in quarters of a window, so the sender
/// always gets enough.
const MIN_FRAME_BYTES: u32 = 4 << 10;

#[derive(Debug)]
struct CreditState {
    available: u32,
    closed: bool,
    waiting: Option<Waker>,
}

/// The credit of one channel, with one sender.
#[derive(Debug)]
pub(crate) struct SendCredit(Mutex<CreditState>);

impl SendCredit {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(CreditState { available: WINDOW_BYTES, closed: false, waiting: None }))
    }

    fn state(&self) -> MutexGuard<'_, CreditState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds credit; returns whether the sum is within the window.
    pub(crate) fn add(&self, amount: u32) -> bool {
        let mut state = self.state();
        let Some(sum) = state.available.checked_add(amount).filter(|sum| *sum <= WINDOW_BYTES) else {
            return false;
        };
        state.available = sum;
        if let Some(waker) = state.waiting.take() {
            waker.wake();
        }
        true
    }

    /// Ends sending on the channel.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        if let Some(waker) = state.waiting.take() {
            waker.wake();
        }
    }

    /// Reserves credit for one frame of `least` to `wanted` bytes, and returns the granted length; `None` if
    /// the channel is closed.
    pub(crate) fn poll_reserve(
        &self,
        context: &mut Context<'_>,
        least: usize,
        wanted: usize,
    ) -> Poll<Option<usize>> {
        let mut state = self.state();
        if state.closed {
            return Poll::Ready(None);
        }
        let room = state.available.saturating_sub(FRAME_COST);
        let least = u32::try_from(least).unwrap_or(u32::MAX);
        if state.available < FRAME_COST || room < least {
            state.waiting = Some(context.waker().clone());
            return Poll::Pending;
        }
        let taken = room.min(u32::try_from(wanted).unwrap_or(u32::MAX));
        state.available -= taken + FRAME_COST;
        Poll::Ready(Some(taken as usize))
    }

    /// Reserves credit for at most `wanted` bytes, waiting until the frame is not too small.
    pub(crate) fn poll_reserve_some(&self, context: &mut Context<'_>, wanted: usize) -> Poll<Option<usize>> {
        self.poll_reserve(context, wanted.min(MIN_FRAME_BYTES as usize), wanted)
    }

    /// Waits for credit for a frame of exactly `len` bytes; returns whether it can be sent.
    #[cfg(any(test, target_os = "linux"))]
    pub(crate) async fn reserve(&self, len: usize) -> bool {
        std::future::poll_fn(|context| self.poll_reserve(context, len, len)).await.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn credit_runs_out_and_comes_back() {
        let credit = SendCredit::new();
        assert!(credit.reserve((WINDOW_BYTES - FRAME_COST) as usize).await);
        let mut context = Context::from_waker(Waker::noop());
        assert!(credit.poll_reserve_some(&mut context, 1).is_pending());
        assert!(credit.add(FRAME_COST + 10));
        assert_eq!(credit.poll_reserve_some(&mut context, 10), Poll::Ready(Some(10)));
        assert!(!credit.add(WINDOW_BYTES + 1));
        credit.close();
        assert_eq!(credit.poll_reserve_some(&mut context, 1), Poll::Ready(None));
    }
}
