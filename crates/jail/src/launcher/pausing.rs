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

use super::pace::Bucket;
use super::start::group_failed;
use crate::cgroup::{self, Group};
use crate::spec::Answer;

/// Maximum queued changes of one sandbox.
const MAX_QUEUED: usize = 16;
/// Rate limit of changes of one sandbox: the size of a burst, and the time until another change is allowed.
const BURST: u32 = 4;
const BETWEEN_CHANGES: Duration = Duration::from_secs(1);
/// Delay before the first check whether a cgroup is frozen. It doubles with each check, up to
/// `MAX_CHECK_DELAY`.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(32);
/// After this time a change counts as made: a process that is still in the kernel stops as soon as it leaves
/// it.
const PATIENCE: Duration = Duration::from_secs(1);

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
pub(super) struct Pausing {
    /// The state last written to the cgroup.
    frozen: bool,
    queue: VecDeque<(u64, bool)>,
    stopping: Option<Stopping>,
    budget: Bucket,
    /// Whether the sandbox is being killed, so that no more changes are made.
    dying: bool,
}

/// A cgroup that is freezing.
#[derive(Debug)]
struct Stopping {
    question: u64,
    since: Instant,
    next_look: Instant,
    wait: Duration,
}

impl Pausing {
    pub(super) fn new(now: Instant) -> Self {
        let budget = Bucket::new(BURST, now);
        Self { frozen: false, queue: VecDeque::new(), stopping: None, budget, dying: false }
    }

    /// Queues a change. Returns an answer at once if the queue is full.
    pub(super) fn ask(&mut self, question: u64, frozen: bool) -> Option<Answer> {
        if self.queue.len() >= MAX_QUEUED {
            let message = format!("{MAX_QUEUED} pause and resume requests are already queued; retry later");
            return Some(Answer::Refused(message));
        }
        self.queue.push_back((question, frozen));
        None
    }

    /// Returns when `proceed` has something to do next.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        match &self.stopping {
            _ if self.dying => None,
            Some(stopping) => Some(stopping.next_look),
            None if self.queue.is_empty() => None,
            None => Some(self.budget.next(BETWEEN_CHANGES, now)),
        }
    }

    /// Makes the next change, or checks the current one. Returns the answer to a finished request.
    pub(super) fn proceed(&mut self, group: Option<&impl Freeze>, now: Instant) -> Option<(u64, Answer)> {
        let Some(group) = group else {
            let (question, _) = self.queue.pop_front()?;
            return Some((question, Answer::Refused("this host has no cgroup to freeze".to_owned())));
        };
        if let Some(stopping) = self.stopping.take() {
            return self.look(stopping, group, now);
        }
        self.budget.refill(BETWEEN_CHANGES, BURST, now);
        if self.queue.is_empty() || !self.budget.take() {
            return None;
        }
        let (question, frozen) = self.queue.pop_front()?;
        if let Err(error) = group.set_frozen(frozen) {
            return Some((question, Answer::Refused(group_failed(error).to_string())));
        }
        self.frozen = frozen;
        if !frozen {
            return Some((question, Answer::Done));
        }
        self.look(Stopping { question, since: now, next_look: now, wait: FIRST_LOOK }, group, now)
    }

    fn look(&mut self, stopping: Stopping, group: &impl Freeze, now: Instant) -> Option<(u64, Answer)> {
        if group.is_frozen() || now.saturating_duration_since(stopping.since) >= PATIENCE {
            return Some((stopping.question, Answer::Done));
        }
        let wait = (stopping.wait * 2).min(LAST_LOOK);
        self.stopping = Some(Stopping { next_look: now + stopping.wait, wait, ..stopping });
        None
    }

    /// Thaws the cgroup so that killed processes can exit: a frozen process does not die before it is thawed.
    /// No more changes are made afterwards.
    pub(super) fn let_die(&mut self, group: Option<&impl Freeze>) {
        self.dying = true;
        if let Some(group) = group.filter(|_| std::mem::take(&mut self.frozen)) {
            // If this fails, the cgroup is gone and nothing in it is frozen.
            let _thawed = group.set_frozen(false);
        }
    }

    /// Removes all outstanding requests and returns their numbers.
    pub(super) fn abandon(&mut self) -> Vec<u64> {
        let stopping = self.stopping.take().map(|stopping| stopping.question);
        stopping.into_iter().chain(self.queue.drain(..).map(|(question, _)| question)).collect()
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
    fn a_slow_group_is_looked_at_again_and_then_answered() {
        let start = Instant::now();
        let slow = Slow { looks_left: Cell::new(3), ..Slow::default() };
        let mut pausing = Pausing::new(start);
        assert_eq!(pausing.ask(7, true), None);
        let mut now = start;
        let mut answers = Vec::new();
        while let Some(due) = pausing.due(now) {
            now = now.max(due);
            answers.extend(pausing.proceed(Some(&slow), now));
        }
        assert_eq!(answers, [(7, Answer::Done)]);
        assert_eq!(*slow.written.borrow(), [true], "written once");
        assert_eq!(now - start, FIRST_LOOK * 7, "1 + 2 + 4");
    }

    #[test]
    fn a_group_that_never_stands_still_is_answered_all_the_same() {
        let mut now = Instant::now();
        let stuck = Slow { looks_left: Cell::new(u32::MAX), ..Slow::default() };
        let mut pausing = Pausing::new(now);
        pausing.ask(1, true);
        let mut looks = 0;
        let answer = loop {
            now = now.max(pausing.due(now).unwrap());
            looks += 1;
            if let Some(answer) = pausing.proceed(Some(&stuck), now) {
                break answer;
            }
        };
        assert_eq!(answer, (1, Answer::Done));
        assert!(looks < 60, "{looks} looks");
    }

    #[test]
    fn changes_have_a_pace_and_a_bound() {
        let start = Instant::now();
        let group = Slow::default();
        let mut pausing = Pausing::new(start);
        for question in 0..MAX_QUEUED as u64 {
            assert_eq!(pausing.ask(question, question % 2 == 0), None);
        }
        assert!(matches!(pausing.ask(99, true), Some(Answer::Refused(_))), "the queue is full");
        let mut at_once = 0;
        while pausing.due(start) == Some(start) && pausing.proceed(Some(&group), start).is_some() {
            at_once += 1;
        }
        assert_eq!(at_once, BURST);
        assert_eq!(pausing.due(start), Some(start + BETWEEN_CHANGES));
        assert!(pausing.proceed(Some(&group), start + BETWEEN_CHANGES).is_some());
        assert_eq!(pausing.abandon().len(), MAX_QUEUED - BURST as usize - 1, "all requests are returned");
    }

    #[test]
    fn what_dies_is_thawed_first() {
        let now = Instant::now();
        let group = Slow::default();
        let mut pausing = Pausing::new(now);
        pausing.ask(1, true);
        pausing.proceed(Some(&group), now);
        pausing.let_die(Some(&group));
        assert_eq!(*group.written.borrow(), [true, false]);
        pausing.ask(2, true);
        assert_eq!(pausing.due(now), None, "it is not paused again while it is being killed");
    }
}
