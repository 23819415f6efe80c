//! Pauses and resumes a sandbox without blocking the launcher.
//!
//! ```text
//! request ──▶ queued ──in order──▶ written to the cgroup ──frozen, or timeout──▶ answered
//! ```
//!
//! The kernel takes as long to freeze a cgroup as the slowest of its processes takes to leave the kernel. So
//! the launcher writes the change, checks later whether it has taken effect, and only then answers the
//! request.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::limits::cgroup_failure;
use super::token_bucket::TokenBucket;
use crate::cgroup::{self, Group};
use crate::spec::JailResponse;

/// Maximum queued changes of one sandbox.
const MAX_QUEUED: usize = 16;
/// Rate limit of changes of one sandbox: the size of a burst, and the time until another change is allowed.
const BURST: u32 = 4;
const CHANGE_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before the first check whether a cgroup is frozen. It doubles with each check, up to
/// `MAX_CHECK_DELAY`.
const MIN_CHECK_DELAY: Duration = Duration::from_millis(1);
const MAX_CHECK_DELAY: Duration = Duration::from_millis(32);
/// After this time a change counts as made: a process that is still in the kernel stops as soon as it leaves
/// it.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(1);

/// Something that can be frozen: a cgroup, or a test's stand-in.
pub(super) trait Freeze {
    fn set_frozen(&self, frozen: bool) -> Result<(), cgroup::Error>;
    fn is_frozen(&self) -> bool;
}

impl Freeze for Group {
    fn set_frozen(&self, frozen: bool) -> Result<(), cgroup::Error> {
        Group::set_frozen(self, frozen)
    }

    fn is_frozen(&self) -> bool {
        Group::is_frozen(self)
    }
}

/// The pauses and resumes of one sandbox.
#[derive(Debug)]
pub(super) struct PauseQueue {
    /// The state last written to the cgroup.
    frozen: bool,
    queue: VecDeque<(u64, bool)>,
    freezing: Option<FreezeInProgress>,
    budget: TokenBucket,
    /// Whether the sandbox is being killed, so that no more changes are made.
    dying: bool,
}

/// A cgroup that is freezing.
#[derive(Debug)]
struct FreezeInProgress {
    request: u64,
    since: Instant,
    next_check: Instant,
    check_delay: Duration,
}

impl PauseQueue {
    pub(super) fn new(now: Instant) -> Self {
        let budget = TokenBucket::new(BURST, now);
        Self { frozen: false, queue: VecDeque::new(), freezing: None, budget, dying: false }
    }

    /// Queues a change. Returns an answer at once if the queue is full.
    pub(super) fn enqueue(&mut self, request: u64, frozen: bool) -> Option<JailResponse> {
        if self.queue.len() >= MAX_QUEUED {
            let message = format!("{MAX_QUEUED} pause and resume requests are already queued; retry later");
            return Some(JailResponse::Refused(message));
        }
        self.queue.push_back((request, frozen));
        None
    }

    /// Returns when `proceed` has something to do next.
    pub(super) fn next_step_at(&self, now: Instant) -> Option<Instant> {
        match &self.freezing {
            _ if self.dying => None,
            Some(stopping) => Some(stopping.next_check),
            None if self.queue.is_empty() => None,
            None => Some(self.budget.next_token_at(CHANGE_INTERVAL, now)),
        }
    }

    /// Makes the next change, or checks the current one. Returns the answer to a finished request.
    pub(super) fn proceed(
        &mut self,
        group: Option<&impl Freeze>,
        now: Instant,
    ) -> Option<(u64, JailResponse)> {
        let Some(group) = group else {
            let (request, _) = self.queue.pop_front()?;
            return Some((request, JailResponse::Refused("this host has no cgroup to freeze".to_owned())));
        };
        if let Some(stopping) = self.freezing.take() {
            return self.check_frozen(stopping, group, now);
        }
        self.budget.refill(CHANGE_INTERVAL, BURST, now);
        if self.queue.is_empty() || !self.budget.take() {
            return None;
        }
        let (request, frozen) = self.queue.pop_front()?;
        if let Err(error) = group.set_frozen(frozen) {
            return Some((request, JailResponse::Refused(cgroup_failure(error).to_string())));
        }
        self.frozen = frozen;
        if !frozen {
            return Some((request, JailResponse::Done));
        }
        self.check_frozen(
            FreezeInProgress { request, since: now, next_check: now, check_delay: MIN_CHECK_DELAY },
            group,
            now,
        )
    }

    fn check_frozen(
        &mut self,
        stopping: FreezeInProgress,
        group: &impl Freeze,
        now: Instant,
    ) -> Option<(u64, JailResponse)> {
        if group.is_frozen() || now.saturating_duration_since(stopping.since) >= FREEZE_TIMEOUT {
            return Some((stopping.request, JailResponse::Done));
        }
        let wait = (stopping.check_delay * 2).min(MAX_CHECK_DELAY);
        self.freezing =
            Some(FreezeInProgress { next_check: now + stopping.check_delay, check_delay: wait, ..stopping });
        None
    }

    /// Thaws the cgroup so that killed processes can exit: a frozen process does not die before it is thawed.
    /// No more changes are made afterwards.
    pub(super) fn thaw_for_kill(&mut self, group: Option<&impl Freeze>) {
        self.dying = true;
        if let Some(group) = group.filter(|_| std::mem::take(&mut self.frozen)) {
            // If this fails, the cgroup is gone and nothing in it is frozen.
            let _thawed = group.set_frozen(false);
        }
    }

    /// Removes all outstanding requests and returns their numbers.
    pub(super) fn cancel_all(&mut self) -> Vec<u64> {
        let stopping = self.freezing.take().map(|stopping| stopping.request);
        stopping.into_iter().chain(self.queue.drain(..).map(|(request, _)| request)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A fake cgroup that is frozen after a number of checks.
    #[derive(Default)]
    struct Slow {
        looks_left: Cell<u32>,
        written: RefCell<Vec<bool>>,
    }

    impl Freeze for Slow {
        fn set_frozen(&self, frozen: bool) -> Result<(), cgroup::Error> {
            self.written.borrow_mut().push(frozen);
            Ok(())
        }

        fn is_frozen(&self) -> bool {
            let left = self.looks_left.get();
            self.looks_left.set(left.saturating_sub(1));
            left == 0
        }
    }

    #[test]
    fn slow_freeze_is_polled_and_then_answered() {
        let start = Instant::now();
        let slow = Slow { looks_left: Cell::new(3), ..Slow::default() };
        let mut pausing = PauseQueue::new(start);
        assert_eq!(pausing.enqueue(7, true), None);
        let mut now = start;
        let mut answers = Vec::new();
        while let Some(due) = pausing.next_step_at(now) {
            now = now.max(due);
            answers.extend(pausing.proceed(Some(&slow), now));
        }
        assert_eq!(answers, [(7, JailResponse::Done)]);
        assert_eq!(*slow.written.borrow(), [true], "written once");
        assert_eq!(now - start, MIN_CHECK_DELAY * 7, "1 + 2 + 4");
    }

    #[test]
    fn freeze_that_never_completes_is_answered_after_the_timeout() {
        let mut now = Instant::now();
        let stuck = Slow { looks_left: Cell::new(u32::MAX), ..Slow::default() };
        let mut pausing = PauseQueue::new(now);
        pausing.enqueue(1, true);
        let mut looks = 0;
        let answer = loop {
            now = now.max(pausing.next_step_at(now).unwrap());
            looks += 1;
            if let Some(answer) = pausing.proceed(Some(&stuck), now) {
                break answer;
            }
        };
        assert_eq!(answer, (1, JailResponse::Done));
        assert!(looks < 60, "{looks} looks");
    }

    #[test]
    fn changes_are_rate_limited_and_queue_is_bounded() {
        let start = Instant::now();
        let group = Slow::default();
        let mut pausing = PauseQueue::new(start);
        for request in 0..MAX_QUEUED as u64 {
            assert_eq!(pausing.enqueue(request, request % 2 == 0), None);
        }
        assert!(matches!(pausing.enqueue(99, true), Some(JailResponse::Refused(_))), "the queue is full");
        let mut at_once = 0;
        while pausing.next_step_at(start) == Some(start) && pausing.proceed(Some(&group), start).is_some() {
            at_once += 1;
        }
        assert_eq!(at_once, BURST);
        assert_eq!(pausing.next_step_at(start), Some(start + CHANGE_INTERVAL));
        assert!(pausing.proceed(Some(&group), start + CHANGE_INTERVAL).is_some());
        assert_eq!(pausing.cancel_all().len(), MAX_QUEUED - BURST as usize - 1, "all requests are returned");
    }

    #[test]
    fn killed_sandbox_is_thawed_first() {
        let now = Instant::now();
        let group = Slow::default();
        let mut pausing = PauseQueue::new(now);
        pausing.enqueue(1, true);
        pausing.proceed(Some(&group), now);
        pausing.thaw_for_kill(Some(&group));
        assert_eq!(*group.written.borrow(), [true, false]);
        pausing.enqueue(2, true);
        assert_eq!(pausing.next_step_at(now), None, "it is not paused again while it is being killed");
    }
}
