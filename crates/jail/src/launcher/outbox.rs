//! Queue of events to the provider. If the provider does not read for a while, events wait here instead of
//! blocking the launcher. The queue is bounded by the number of requests.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::wire::{self, Notice};

/// The events that wait to be sent over the control socket.
#[derive(Debug)]
pub(super) struct Outbox<'a> {
    control: &'a OwnedFd,
    waiting: VecDeque<Notice>,
}

impl<'a> Outbox<'a> {
    pub(super) fn new(control: &'a OwnedFd) -> Self {
        Self { control, waiting: VecDeque::new() }
    }

    pub(super) fn control(&self) -> BorrowedFd<'a> {
        self.control.as_fd()
    }

    /// Returns whether events wait to be sent.
    pub(super) fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends an event, at once or as soon as the socket has room.
    pub(super) fn push(&mut self, notice: Notice) {
        self.waiting.push_back(notice);
        self.send();
    }

    /// Sends as many events as the socket has room for.
    pub(super) fn send(&mut self) {
        while let Some(notice) = self.waiting.front() {
            match wire::send(self.control(), notice, &[]) {
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
    use crate::spec::Answer;

    #[test]
    fn notices_wait_in_order_while_nobody_reads() {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let mut outbox = Outbox::new(&ours);
        let most = 10_000;
        for run in 0..most {
            outbox.push(Notice::Answered { run, answer: Answer::Done });
        }
        assert!(outbox.is_full(), "the socket buffer does not hold that many");
        let mut buffer = Vec::new();
        for expected in 0..most {
            let received = wire::receive::<Notice>(theirs.as_fd(), &mut buffer).unwrap();
            assert!(matches!(received, Some((Notice::Answered { run, .. }, _)) if run == expected));
            outbox.send();
        }
        assert!(!outbox.is_full());
    }
}
