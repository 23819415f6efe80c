//! What the filter of a run tells: calls that it does not let pass, and the end that a zygote's child announces.
//!
//! Whoever makes such a call waits until the launcher has answered. The launcher has others to look after, so it hears one
//! call at a time, and no more than so many of a run: then nobody listens any longer, and the kernel answers by itself. A
//! jail that stays is heard for as long as it does, at a pace: who is refused more than that waits for his answers.

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

/// So many calls of a run are heard, and of a jail that stays at once. Enough for every call there is, once.
const MOST_HEARD: u32 = 256;
/// So many different ones are told of, of each command.
const MOST_NAMES: usize = 16;
/// So many are remembered of a jail that stays; the oldest go first.
const MOST_KEPT: usize = 256;

/// The launcher's ear at the filters of one run.
#[derive(Default)]
pub(super) struct Ear {
    /// Where listeners come from; who wears the filter sends its own when it is confined.
    lines: Vec<OwnedFd>,
    listeners: Vec<OwnedFd>,
    heard: u32,
    /// Beside each, whose it was.
    refused: Vec<(u32, RefusedCall)>,
    /// Of a jail that stays, how many calls may be heard.
    budget: Option<Bucket>,
    /// When one was heard last.
    last: Option<Instant>,
}

impl Ear {
    /// At a program whose listener is here.
    pub(super) fn of(listener: Option<OwnedFd>) -> Self {
        Self { listeners: listener.into_iter().collect(), ..Self::default() }
    }

    /// At commands whose listeners are yet to come.
    pub(super) fn at(lines: Vec<OwnedFd>) -> Self {
        Self { lines, ..Self::default() }
    }

    /// At a guest whose listener is yet to come, and so at everything that it starts.
    pub(super) fn staying(line: OwnedFd) -> Self {
        Self { budget: Some(Bucket::new(MOST_HEARD, Instant::now())), ..Self::at(vec![line]) }
    }

    pub(super) fn watched(&self, hearing: &Hearing, now: Instant) -> impl Iterator<Item = BorrowedFd<'_>> {
        let deaf = self.next_turn(hearing, now).is_some();
        let listeners = self.listeners.iter().filter(move |_| !deaf);
        self.lines.iter().chain(listeners).map(AsFd::as_fd)
    }

    /// When the next call of a jail that stays is heard, where that is not at once.
    pub(super) fn next_turn(&self, hearing: &Hearing, now: Instant) -> Option<Instant> {
        let budget = self.budget.as_ref().filter(|_| !self.listeners.is_empty())?;
        let own = Some(budget.next(hearing.pace(), now)).filter(|at| *at > now);
        own.max(hearing.closed_until(now))
    }

    /// When a call was heard last.
    pub(super) fn last_heard(&self) -> Option<Instant> {
        self.last
    }

    /// What was refused so far, and to whom.
    pub(super) fn refused(&self) -> &[(u32, RefusedCall)] {
        &self.refused
    }

    /// Takes the calls that were refused, each name once, and whether there may have been more. It stays open: a child that
    /// announced its end waits there to be looked at.
    pub(super) fn take_refused(&mut self) -> (Vec<RefusedCall>, bool) {
        let refused = std::mem::take(&mut self.refused).into_iter().map(|(_, call)| call);
        (refused.collect(), self.heard >= MOST_HEARD)
    }

    /// Takes what has come, and hears the next call at each filter; the status with which the `main` process says that it
    /// is about to end, as `wait` would give it. `owner` says whose a process is.
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
            // Whoever waits for an answer has it with this: there is no such call.
            self.listeners.clear();
            self.lines.clear();
        }
        leaving
    }

    /// With the time that has passed, more of a jail that stays may be heard.
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
            // Its number may be somebody else's by now.
            let known = owner == 0 || sys::is_held(listener.as_fd(), call.id);
            self.note(call, if known { owner } else { 0 });
            sys::refuse(listener.as_fd(), call.id, Errno::PERM);
            return None;
        }
        if main == Some(call.pid) {
            return Some((call.arguments[0] as i32 & 0xff) << 8);
        }
        // One of its children, which ends as it likes.
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

/// What there is to hear.
enum Next {
    Call(HeldCall),
    /// Nothing; whoever made a call may be gone.
    None,
    /// Nobody wears the filter any more.
    Never,
}

/// The next call at a listener. It is asked for only where one waits: to ask for none is to wait for one, on some kernels
/// also where nobody is left to make it.
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
