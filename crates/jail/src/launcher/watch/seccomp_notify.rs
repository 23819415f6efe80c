//! Seccomp notifications of a run: system calls that its filter denies, and the announced exit of a warm
//! child.
//!
//! A process that makes such a call blocks until the launcher has answered. So that one run cannot keep the
//! launcher busy, the launcher handles one call at a time, and a limited number per run. Beyond that it
//! closes the listener, and the kernel answers by itself. A sandbox is listened to as long as it lives, but
//! at a limited rate: beyond that rate, denied calls are delayed.
//!
//! Allowed calls cost nothing extra. The launcher answers every denied call with EPERM and lets no call pass
//! except an exit. A warm child announces its exit by `exit_group` with a second argument, which the kernel
//! ignores and the filter reports before the memory is torn down. It is an exit like any other, so announcing
//! it forges nothing.
//!
//! A warm child sends its listener with its ready message; a cold program sends it over its command socket
//! once it is confined. A sandbox has one filter, which the guest's programs inherit, and so one listener.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use belljar_model::denial::DeniedSyscall;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::notify_budget::NotifyBudget;
use crate::launcher::token_bucket::TokenBucket;
use crate::seccomp;
use crate::sys::{self, SyscallNotification};
use crate::wire;

/// Maximum notifications handled per run; for a sandbox, the maximum burst. Enough for every system call
/// once.
const MAX_NOTIFICATIONS: u32 = 256;
/// Maximum different denied calls reported for each command.
const MAX_CALL_NAMES: usize = 16;
/// Maximum denied calls kept for a sandbox; the oldest are dropped first.
const MAX_DENIED_CALLS: usize = 256;

/// The launcher's end of the seccomp listeners of one run.
#[derive(Default)]
pub(crate) struct NotifyListener {
    /// Sockets over which processes send their listeners once they are confined.
    sockets: Vec<OwnedFd>,
    listeners: Vec<OwnedFd>,
    /// Number of notifications handled, except in a sandbox.
    handled: u32,
    /// Denied calls, each with the session id of the command that made it.
    denied: Vec<(u32, DeniedSyscall)>,
    /// The rate limit of a sandbox.
    budget: Option<TokenBucket>,
    /// When a notification was last handled.
    last_handled: Option<Instant>,
}

impl NotifyListener {
    /// Creates the listener for a program that has already sent its descriptor.
    pub(crate) fn with_listener(listener: Option<OwnedFd>) -> Self {
        Self { listeners: listener.into_iter().collect(), ..Self::default() }
    }

    /// Creates the listener for commands that will send their descriptors.
    pub(crate) fn from_sockets(sockets: Vec<OwnedFd>) -> Self {
        Self { sockets, ..Self::default() }
    }

    /// Creates the rate-limited listener for a guest that will send its descriptor. It covers everything the
    /// guest starts.
    pub(crate) fn rate_limited(socket: OwnedFd) -> Self {
        Self {
            budget: Some(TokenBucket::new(MAX_NOTIFICATIONS, Instant::now())),
            ..Self::from_sockets(vec![socket])
        }
    }

    /// Returns the descriptors to poll; without the listeners while the rate limit is exhausted.
    pub(crate) fn watched(
        &self,
        shared_budget: &NotifyBudget,
        now: Instant,
    ) -> impl Iterator<Item = BorrowedFd<'_>> {
        let exhausted = self.next_allowed(shared_budget, now).is_some();
        let listeners = self.listeners.iter().filter(move |_| !exhausted);
        self.sockets.iter().chain(listeners).map(AsFd::as_fd)
    }

    /// Returns when the next notification of a sandbox may be handled, if it must wait.
    pub(crate) fn next_allowed(&self, shared_budget: &NotifyBudget, now: Instant) -> Option<Instant> {
        let budget = self.budget.as_ref().filter(|_| !self.listeners.is_empty())?;
        let own = Some(budget.next_token_at(shared_budget.interval(), now)).filter(|at| *at > now);
        own.max(shared_budget.exhausted_until(now))
    }

    /// Returns when a notification was last handled.
    pub(crate) fn last_handled(&self) -> Option<Instant> {
        self.last_handled
    }

    /// Returns the calls denied so far, each with the session id of its command.
    pub(crate) fn denied(&self) -> &[(u32, DeniedSyscall)] {
        &self.denied
    }

    /// Removes and returns the denied calls, each name once, and whether there may have been more. The
    /// listeners stay open: a warm child that announced its exit is blocked there until its memory has been
    /// sampled.
    pub(crate) fn take_denied(&mut self) -> (Vec<DeniedSyscall>, bool) {
        let refused = std::mem::take(&mut self.denied).into_iter().map(|(_, call)| call);
        (refused.collect(), self.handled >= MAX_NOTIFICATIONS)
    }

    /// Receives new listeners and handles the next notification of each. Returns the wait status with which
    /// the `main` process announces its exit. `owner` maps a pid to the session id of its command.
    pub(crate) fn poll(
        &mut self,
        main: Option<i32>,
        shared_budget: &mut NotifyBudget,
        mut owner: impl FnMut(i32) -> u32,
    ) -> Option<i32> {
        self.receive_listeners();
        let now = Instant::now();
        let mut exit_status = None;
        for listener in std::mem::take(&mut self.listeners) {
            let next =
                if self.refill_budget(shared_budget, now) { receive_call(&listener) } else { NextCall::None };
            match next {
                NextCall::Call(call) => {
                    self.charge_budget(shared_budget, now);
                    exit_status = self.answer(&listener, &call, main, &mut owner).or(exit_status);
                }
                NextCall::None => {}
                NextCall::Closed => continue,
            }
            self.listeners.push(listener);
        }
        if self.handled >= MAX_NOTIFICATIONS && self.budget.is_none() {
            // This also answers callers that are blocked: the kernel returns ENOSYS.
            self.listeners.clear();
            self.sockets.clear();
        }
        exit_status
    }

    /// Refills the rate limit of a sandbox, and returns whether a notification may be handled now.
    fn refill_budget(&mut self, shared_budget: &NotifyBudget, now: Instant) -> bool {
        match &mut self.budget {
            Some(budget) => {
                budget.refill(shared_budget.interval(), MAX_NOTIFICATIONS, now);
                budget.tokens_left() > 0 && shared_budget.exhausted_until(now).is_none()
            }
            None => true,
        }
    }

    fn charge_budget(&mut self, shared_budget: &mut NotifyBudget, now: Instant) {
        self.last_handled = Some(now);
        match &mut self.budget {
            Some(budget) => {
                let _taken = budget.take() && shared_budget.take();
            }
            None => self.handled += 1,
        }
    }

    fn receive_listeners(&mut self) {
        let listeners = &mut self.listeners;
        self.sockets.retain(|socket| match wire::try_receive_bytes(socket.as_fd(), &mut [0; 1]) {
            Ok((_, received)) => {
                listeners.extend(received);
                false
            }
            Err(errno) => matches!(errno, Errno::AGAIN | Errno::INTR),
        });
    }

    fn answer(
        &mut self,
        listener: &OwnedFd,
        call: &SyscallNotification,
        main: Option<i32>,
        owner: &mut impl FnMut(i32) -> u32,
    ) -> Option<i32> {
        if i64::from(call.number) != libc::SYS_exit_group {
            let owner = owner(call.pid);
            // If the call is no longer pending, its pid may belong to another process.
            let known = owner == 0 || sys::is_notification_valid(listener.as_fd(), call.id);
            self.record_denied(call, if known { owner } else { 0 });
            sys::fail_call(listener.as_fd(), call.id, Errno::PERM);
            return None;
        }
        if main == Some(call.pid) {
            return Some((call.arguments[0] as i32 & 0xff) << 8);
        }
        // A child of the program exits.
        sys::continue_call(listener.as_fd(), call.id);
        None
    }

    fn record_denied(&mut self, call: &SyscallNotification, owner: u32) {
        let Some(name) = seccomp::syscall_name(call.number) else { return };
        let [first, second, third, ..] = call.arguments;
        let mut names = 0;
        for (_, known) in self.denied.iter_mut().filter(|(other, _)| *other == owner) {
            if known.name == name {
                known.count = known.count.saturating_add(1);
                return;
            }
            names += 1;
        }
        if names == MAX_CALL_NAMES {
            return;
        }
        if self.denied.len() == MAX_DENIED_CALLS {
            self.denied.remove(0);
        }
        let arguments = [first, second, third];
        self.denied.push((owner, DeniedSyscall { name: name.to_owned(), arguments, count: 1 }));
    }
}

/// The result of polling a listener.
enum NextCall {
    /// A pending call.
    Call(SyscallNotification),
    /// No pending call; a caller may have exited.
    None,
    /// The listener is closed: no process has the filter any more.
    Closed,
}

/// Receives the next call of a listener, after polling it: receiving blocks if there is none, on some kernels
/// even if no process is left that could make one.
fn receive_call(listener: &OwnedFd) -> NextCall {
    let mut polled = [PollFd::new(listener, PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    if rustix::event::poll(&mut polled, Some(&now)).is_err() {
        return NextCall::None;
    }
    let found = polled[0].revents();
    if !found.contains(PollFlags::IN) {
        return if found.is_empty() { NextCall::None } else { NextCall::Closed };
    }
    match sys::receive_notification(listener.as_fd()) {
        Ok(call) => NextCall::Call(call),
        Err(Errno::NOENT | Errno::INTR) => NextCall::None,
        Err(_) => NextCall::Closed,
    }
}
