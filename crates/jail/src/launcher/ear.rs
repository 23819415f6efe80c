//! Seccomp notifications of a run: system calls that its filter denies, and the announced exit of a warm
//! child.
//!
//! A process that makes such a call blocks until the launcher has answered. So that one run cannot keep the
//! launcher busy, the launcher handles one call at a time, and a limited number per run. Beyond that it
//! closes the listener, and the kernel answers by itself. A sandbox is listened to as long as it lives, but
//! at a limited rate: beyond that rate, denied calls are delayed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::hearing::Hearing;
use super::pace::Bucket;
use crate::seccomp;
use crate::spec::RefusedCall;
use crate::sys::{self, HeldCall};
use crate::wire;

/// Maximum notifications handled per run; for a sandbox, the maximum burst. Enough for every system call
/// once.
const MOST_HEARD: u32 = 256;
/// Maximum different denied calls reported for each command.
const MOST_NAMES: usize = 16;
/// Maximum denied calls kept for a sandbox; the oldest are dropped first.
const MOST_KEPT: usize = 256;

/// The launcher's end of the seccomp listeners of one run.
#[derive(Default)]
pub(super) struct Ear {
    /// Sockets over which processes send their listeners once they are confined.
    lines: Vec<OwnedFd>,
    listeners: Vec<OwnedFd>,
    /// Number of notifications handled, except in a sandbox.
    heard: u32,
    /// Denied calls, each with the session id of the command that made it.
    refused: Vec<(u32, RefusedCall)>,
    /// The rate limit of a sandbox.
    budget: Option<Bucket>,
    /// When a notification was last handled.
    last: Option<Instant>,
}

impl Ear {
    /// Creates the listener for a program that has already sent its descriptor.
    pub(super) fn of(listener: Option<OwnedFd>) -> Self {
        Self { listeners: listener.into_iter().collect(), ..Self::default() }
    }

    /// Creates the listener for commands that will send their descriptors.
    pub(super) fn at(lines: Vec<OwnedFd>) -> Self {
        Self { lines, ..Self::default() }
    }

    /// Creates the rate-limited listener for a guest that will send its descriptor. It covers everything the
    /// guest starts.
    pub(super) fn staying(line: OwnedFd) -> Self {
        Self { budget: Some(Bucket::new(MOST_HEARD, Instant::now())), ..Self::at(vec![line]) }
    }

    /// Returns the descriptors to poll; without the listeners while the rate limit is exhausted.
    pub(super) fn watched(&self, hearing: &Hearing, now: Instant) -> impl Iterator<Item = BorrowedFd<'_>> {
        let deaf = self.next_turn(hearing, now).is_some();
        let listeners = self.listeners.iter().filter(move |_| !deaf);
        self.lines.iter().chain(listeners).map(AsFd::as_fd)
    }

    /// Returns when the next notification of a sandbox may be handled, if it must wait.
    pub(super) fn next_turn(&self, hearing: &Hearing, now: Instant) -> Option<Instant> {
        let budget = self.budget.as_ref().filter(|_| !self.listeners.is_empty())?;
        let own = Some(budget.next(hearing.pace(), now)).filter(|at| *at > now);
        own.max(hearing.closed_until(now))
    }

    /// Returns when a notification was last handled.
    pub(super) fn last_heard(&self) -> Option<Instant> {
        self.last
    }

    /// Returns the calls denied so far, each with the session id of its command.
    pub(super) fn refused(&self) -> &[(u32, RefusedCall)] {
        &self.refused
    }

    /// Removes and returns the denied calls, each name once, and whether there may have been more. The
    /// listeners stay open: a warm child that announced its exit is blocked there until its memory has been
    /// sampled.
    pub(super) fn take_refused(&mut self) -> (Vec<RefusedCall>, bool) {
        let refused = std::mem::take(&mut self.refused).into_iter().map(|(_, call)| call);
        (refused.collect(), self.heard >= MOST_HEARD)
    }

    /// Receives new listeners and handles the next notification of each. Returns the wait status with which
    /// the `main` process announces its exit. `owner` maps a pid to the session id of its command.
    pub(super) fn hear(
        &mut self,
        main: Option<i32>,
        hearing: &mut Hearing,
        mut owner: impl FnMut(i32) -> u32,
    ) -> Option<i32> {
        self.take_listeners();
        let now = Instant::now();
        let mut leaving = None;
        for listener in std::mem::take(&mut self.listeners) {
            let next = if self.may_hear(hearing, now) { next_call(&listener) } else { Next::None };
            match next {
                Next::Call(call) => {
                    self.spend(hearing, now);
                    leaving = self.answer(&listener, &call, main, &mut owner).or(leaving);
                }
                Next::None => {}
                Next::Never => continue,
            }
            self.listeners.push(listener);
        }
        if self.heard >= MOST_HEARD && self.budget.is_none() {
            // This also answers callers that are blocked: the kernel returns ENOSYS.
            self.listeners.clear();
            self.lines.clear();
        }
        leaving
    }

    /// Refills the rate limit of a sandbox, and returns whether a notification may be handled now.
    fn may_hear(&mut self, hearing: &Hearing, now: Instant) -> bool {
        match &mut self.budget {
            Some(budget) => {
                budget.refill(hearing.pace(), MOST_HEARD, now);
                budget.left() > 0 && hearing.closed_until(now).is_none()
            }
            None => true,
        }
    }

    fn spend(&mut self, hearing: &mut Hearing, now: Instant) {
        self.last = Some(now);
        match &mut self.budget {
            Some(budget) => {
                let _taken = budget.take() && hearing.take();
            }
            None => self.heard += 1,
        }
    }

    fn take_listeners(&mut self) {
        let listeners = &mut self.listeners;
        self.lines.retain(|line| match wire::receive_bytes_now(line.as_fd(), &mut [0; 1]) {
            Ok((_, came)) => {
                listeners.extend(came);
                false
            }
            Err(errno) => matches!(errno, Errno::AGAIN | Errno::INTR),
        });
    }

    fn answer(
        &mut self,
        listener: &OwnedFd,
        call: &HeldCall,
        main: Option<i32>,
        owner: &mut impl FnMut(i32) -> u32,
    ) -> Option<i32> {
        if i64::from(call.number) != libc::SYS_exit_group {
            let owner = owner(call.pid);
            // If the call is no longer pending, its pid may belong to another process.
            let known = owner == 0 || sys::is_held(listener.as_fd(), call.id);
            self.note(call, if known { owner } else { 0 });
            sys::refuse(listener.as_fd(), call.id, Errno::PERM);
            return None;
        }
        if main == Some(call.pid) {
            return Some((call.arguments[0] as i32 & 0xff) << 8);
        }
        // A child of the program exits.
        sys::let_pass(listener.as_fd(), call.id);
        None
    }

    fn note(&mut self, call: &HeldCall, owner: u32) {
        let Some(name) = seccomp::name_of(call.number) else { return };
        let [first, second, third, ..] = call.arguments;
        let mut names = 0;
        for (_, known) in self.refused.iter_mut().filter(|(other, _)| *other == owner) {
            if known.name == name {
                known.count = known.count.saturating_add(1);
                return;
            }
            names += 1;
        }
        if names == MOST_NAMES {
            return;
        }
        if self.refused.len() == MOST_KEPT {
            self.refused.remove(0);
        }
        let arguments = [first, second, third];
        self.refused.push((owner, RefusedCall { name: name.to_owned(), arguments, count: 1 }));
    }
}

/// The result of polling a listener.
enum Next {
    /// A pending call.
    Call(HeldCall),
    /// No pending call; a caller may have exited.
    None,
    /// The listener is closed: no process has the filter any more.
    Never,
}

/// Receives the next call of a listener, after polling it: receiving blocks if there is none, on some kernels
/// even if no process is left that could make one.
fn next_call(listener: &OwnedFd) -> Next {
    let mut polled = [PollFd::new(listener, PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    if rustix::event::poll(&mut polled, Some(&now)).is_err() {
        return Next::None;
    }
    let found = polled[0].revents();
    if !found.contains(PollFlags::IN) {
        return if found.is_empty() { Next::None } else { Next::Never };
    }
    match sys::hear_call(listener.as_fd()) {
        Ok(call) => Next::Call(call),
        Err(Errno::NOENT | Errno::INTR) => Next::None,
        Err(_) => Next::Never,
    }
}
