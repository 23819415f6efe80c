//! Notices on their way to the one who gives orders. Where that one does not read for a while, notices wait here and not
//! in a call that blocks: there are never more of them than there were orders.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::wire::{self, Notice};

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

    /// Whether something waits to be sent.
    pub(super) fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends a notice, at once or when there is room for it.
    pub(super) fn push(&mut self, notice: Notice) {
        self.waiting.push_back(notice);
        self.send();
    }

    /// Sends what there is room for.
    pub(super) fn send(&mut self) {
        while let Some(notice) = self.waiting.front() {
            match wire::send(self.control(), notice, &[]) {
                Err(Errno::AGAIN) => return,
                // A peer that is gone is noticed by the next receive, which ends the loop.
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
        assert!(outbox.is_full(), "a socket does not hold that many");
        let mut buffer = Vec::new();
        for expected in 0..most {
            let received = wire::receive::<Notice>(theirs.as_fd(), &mut buffer).unwrap();
            assert!(matches!(received, Some((Notice::Answered { run, .. }, _)) if run == expected));
            outbox.send();
        }
        assert!(!outbox.is_full());
    }
}
