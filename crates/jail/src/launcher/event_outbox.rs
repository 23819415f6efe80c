//! Queue of events to the provider. If the provider does not read for a while, events wait here instead of
//! blocking the launcher. The queue is bounded by the number of requests.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::wire::{self, LauncherEvent};

/// The events that wait to be sent over the control socket.
#[derive(Debug)]
pub(super) struct EventOutbox<'a> {
    control: &'a OwnedFd,
    waiting: VecDeque<LauncherEvent>,
}

impl<'a> EventOutbox<'a> {
    pub(super) fn new(control: &'a OwnedFd) -> Self {
        Self { control, waiting: VecDeque::new() }
    }

    pub(super) fn control(&self) -> BorrowedFd<'a> {
        self.control.as_fd()
    }

    /// Returns whether events wait to be sent.
    pub(super) fn has_pending(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends an event, at once or as soon as the socket has room.
    pub(super) fn push(&mut self, event: LauncherEvent) {
        self.waiting.push_back(event);
        self.send();
    }

    /// Sends as many events as the socket has room for.
    pub(super) fn send(&mut self) {
        while let Some(event) = self.waiting.front() {
            match wire::send(self.control(), event, &[]) {
                Err(Errno::AGAIN) => return,
                // If the peer is gone, the next receive notices, which ends the event loop.
                _ => self.waiting.pop_front(),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;
    use crate::spec::JailResponse;

    #[test]
    fn events_are_queued_in_order_while_the_peer_does_not_read() {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let mut outbox = EventOutbox::new(&ours);
        let most = 10_000;
        for run in 0..most {
            outbox.push(LauncherEvent::JailAnswered { run, response: JailResponse::Done });
        }
        assert!(outbox.has_pending(), "the socket buffer does not hold that many");
        let mut buffer = Vec::new();
        for expected in 0..most {
            let received = wire::receive::<LauncherEvent>(theirs.as_fd(), &mut buffer).unwrap();
            assert!(
                matches!(received, Some((LauncherEvent::JailAnswered { run, .. }, _)) if run == expected)
            );
            outbox.send();
        }
        assert!(!outbox.has_pending());
    }
}
