//! What the filter of a run tells: calls that it does not let pass, and the end that a zygote's child announces.
//!
//! Whoever makes such a call waits until the launcher has answered. The launcher has others to look after, so it hears one
//! call at a time, and no more than so many of a run: then nobody listens any longer, and the kernel answers by itself. A
//! jail that stays is heard for as long as it does, at a pace: who is refused more than that waits for his answers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

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
/// How long a jail that stays waits for another call to be heard, when it has used up what is heard at once.
const PACE: Duration = Duration::from_millis(10);

/// The launcher's ear at the filters of one run.
#[derive(Default)]
pub(super) struct Ear {
    /// Where listeners come from; who wears the filter sends its own when it is confined.
    lines: Vec<OwnedFd>,
    listeners: Vec<OwnedFd>,
    heard: u32,
    /// Beside each, whose it was.
    refused: Vec<(u32, RefusedCall)>,
    /// Of a jail that stays, since when it may have more heard.
    pace: Option<Instant>,
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
        Self { pace: Some(Instant::now()), ..Self::at(vec![line]) }
    }

    pub(super) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listeners = self.listeners.iter().filter(|_| self.next_turn().is_none());
        self.lines.iter().chain(listeners).map(AsFd::as_fd)
    }

    /// When the next call is heard, where that is not at once.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        let turn = self.pace? + PACE;
        (self.heard >= MOST_HEARD && turn > Instant::now()).then_some(turn)
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
    pub(super) fn hear(&mut self, main: Option<i32>, owner: impl Fn(i32) -> u32) -> Option<i32> {
        self.take_listeners();
        self.take_breath();
        let mut leaving = None;
        for listener in std::mem::take(&mut self.listeners) {
            match next_call(&listener) {
                Next::Call(call) => leaving = self.answer(&listener, &call, main, &owner).or(leaving),
                Next::None => {}
                Next::Never => continue,
            }
            self.listeners.push(listener);
        }
        if self.heard >= MOST_HEARD && self.pace.is_none() {
            // Whoever waits for an answer has it with this: there is no such call.
            self.listeners.clear();
            self.lines.clear();
        }
        leaving
    }

    /// With the time that has passed, more of a jail that stays may be heard.
    fn take_breath(&mut self) {
        let Some(since) = &mut self.pace else { return };
        let passed = since.elapsed().as_millis() / PACE.as_millis();
        let turns = u32::try_from(passed).unwrap_or(u32::MAX);
        if turns > 0 {
            self.heard = self.heard.saturating_sub(turns);
            *since = Instant::now();
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
        owner: &impl Fn(i32) -> u32,
    ) -> Option<i32> {
        self.heard += 1;
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
