//! Pausing and resuming a living jail, without the launcher waiting for it.
//!
//! ```text
//! asked ──▶ queued ──in its turn──▶ written ──reached, or after a while──▶ answered
//! ```
//!
//! The kernel takes as long to stop a group as the slowest of its processes takes to leave the kernel. So a change is
//! written, the loop comes back to look whether it has been reached, and only then the one who asked is answered.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::pace::Bucket;
use super::start::group_failed;
use crate::cgroup::{self, Group};
use crate::spec::Answer;

/// How many changes of one jail wait at most.
const MAX_QUEUED: usize = 16;
/// How many changes of one jail are made at once, and how soon after each another one may follow.
const BURST: u32 = 4;
const BETWEEN_CHANGES: Duration = Duration::from_secs(1);
/// How soon it is looked whether a group stands still: first so soon, and then after twice as long each time.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(32);
/// After so long a change counts as made: a process deep in the kernel stops as soon as it comes out.
const PATIENCE: Duration = Duration::from_secs(1);

/// What can be paused: a control group, or what a test has for one.
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

/// The changes of one jail.
#[derive(Debug)]
pub(super) struct Pausing {
    /// What was written last.
    frozen: bool,
    queue: VecDeque<(u64, bool)>,
    stopping: Option<Stopping>,
    budget: Bucket,
    /// The jail is being killed: nothing is changed any more.
    dying: bool,
}

/// A group on its way to standing still.
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

    /// Queues a change; gives an answer where none can be made.
    pub(super) fn ask(&mut self, question: u64, frozen: bool) -> Option<Answer> {
        if self.queue.len() >= MAX_QUEUED {
            let message = format!("{MAX_QUEUED} changes wait already; ask again later");
            return Some(Answer::Refused(message));
        }
        self.queue.push_back((question, frozen));
        None
    }

    /// When there is something to do, where there is anything.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        match &self.stopping {
            _ if self.dying => None,
            Some(stopping) => Some(stopping.next_look),
            None if self.queue.is_empty() => None,
            None => Some(self.budget.next(BETWEEN_CHANGES, now)),
        }
    }

    /// Makes the next change, or looks how far the present one is; gives the answer to a question that is settled.
    pub(super) fn proceed(&mut self, group: Option<&impl Freeze>, now: Instant) -> Option<(u64, Answer)> {
        let Some(group) = group else {
            let (question, _) = self.queue.pop_front()?;
            return Some((question, Answer::Refused("there is no control group here".to_owned())));
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

    /// Lets the jail die: a process that stands still does not die before it goes on. Nothing is changed any more.
    pub(super) fn let_die(&mut self, group: Option<&impl Freeze>) {
        self.dying = true;
        if let Some(group) = group.filter(|_| std::mem::take(&mut self.frozen)) {
            // Where the group is gone nothing stands still.
            let _thawed = group.set_frozen(false);
        }
    }

    /// Everyone who still waits for an answer.
    pub(super) fn abandon(&mut self) -> Vec<u64> {
        let stopping = self.stopping.take().map(|stopping| stopping.question);
        stopping.into_iter().chain(self.queue.drain(..).map(|(question, _)| question)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A group that stands still after it was looked at so many times.
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
        assert!(matches!(pausing.ask(99, true), Some(Answer::Refused(_))), "no more than so many wait");
        let mut at_once = 0;
        while pausing.due(start) == Some(start) && pausing.proceed(Some(&group), start).is_some() {
            at_once += 1;
        }
        assert_eq!(at_once, BURST);
        assert_eq!(pausing.due(start), Some(start + BETWEEN_CHANGES));
        assert!(pausing.proceed(Some(&group), start + BETWEEN_CHANGES).is_some());
        assert_eq!(pausing.abandon().len(), MAX_QUEUED - BURST as usize - 1, "nobody is forgotten");
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
        assert_eq!(pausing.due(now), None, "it is not paused again while it dies");
    }
}
