//! A warm pool: one zygote, running or yet to be started, and its pre-forked children.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::child::{Child, Pending, READY};
use super::home::Home;
use super::run::Run;
use super::warm_jail::{Dying, WarmJail};
use super::zygote::Zygote;
use crate::spec::{Interpreter, Limits, PoolState, Warmth};
use crate::step::{Step, StepFailed};
use crate::template::Root;

/// Maximum children of one zygote, and maximum jails for them, in preparation at a time. Further requests are
/// queued.
const MOST_DUE: usize = 8;
/// Maximum idle children in one bucket, however high the demand.
const MOST_WAITING: usize = 64;
/// Maximum buckets of one pool. Children in one bucket have the same limits.
const MOST_SHELVES: usize = 16;
/// An idle zygote is kept this many times longer than its idle children.
const PATIENCE: u32 = 10;
/// Memory in bytes assumed for a child when no cgroup counts it.
const USUAL_MEMORY: u64 = 2 << 20;
/// Kernel memory in bytes that a built jail without a child uses: a process, seven namespaces and their
/// mounts.
pub(super) const JAIL_MEMORY: u64 = 512 << 10;
/// Delay before the next attempt after a zygote failed. It doubles with each failure, up to
/// `MAX_RETRY_DELAY`.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Idle children and jails of a pool that have the same limits.
pub(super) struct Shelf {
    pub(super) limits: Limits,
    pub(super) waiting: Vec<Child>,
    /// Jails that no child has entered yet, built or under construction.
    pub(super) jails: Vec<WarmJail>,
    /// Target number of idle children; in `fork` mode, of idle jails.
    pub(super) wanted: usize,
    /// The fewest that were idle at any time in the current demand window.
    pub(super) fewest: usize,
    pub(super) used: Instant,
}

impl Shelf {
    fn new(limits: Limits) -> Self {
        let used = Instant::now();
        Self { limits, waiting: Vec::new(), jails: Vec::new(), wanted: 1, fewest: 0, used }
    }

    /// Returns whether it holds nothing that could speed up the next request.
    pub(super) fn is_bare(&self) -> bool {
        self.waiting.is_empty() && self.jails.is_empty()
    }

    /// Removes and returns a built jail that is not reserved for an idle child.
    pub(super) fn take_spare(&mut self) -> Option<WarmJail> {
        let at = self.jails.iter().position(|jail| jail.built.is_some() && !jail.for_pool)?;
        Some(self.jails.swap_remove(at))
    }

    /// Kills and removes all children and jails.
    fn clear(&mut self) -> Vec<Dying> {
        let waiting = self.waiting.drain(..).map(Child::discard);
        waiting.chain(self.jails.drain(..).map(|jail| jail.discard(None))).collect()
    }

    /// Kills and removes children and jails above the target number.
    fn shrink(&mut self) -> Vec<Dying> {
        let kept = self.waiting.len().min(self.wanted);
        let mut surplus: Vec<Dying> = self.waiting.drain(kept..).map(Child::discard).collect();
        while self.waiting.len() + self.jails.len() > self.wanted
            && let Some(spare) = self.take_spare()
        {
            surplus.push(spare.discard(None));
        }
        surplus
    }
}

/// A zygote, running or yet to be started, and its idle children.
pub(super) struct Keeper {
    pub(super) number: u64,
    pub(super) root: Rc<Root>,
    pub(super) interpreter: Interpreter,
    pub(super) zygote: Option<Zygote>,
    /// The zygote that will replace the current one, while it starts.
    pub(super) successor: Option<Zygote>,
    /// Modules that the zygote must not import.
    pub(super) refused: Vec<String>,
    /// Whether children skip preimports, because one of them never finished importing.
    pub(super) imports_nothing_ahead: bool,
    pub(super) shelves: Vec<Shelf>,
    /// Children in preparation, each with the request that waits for it, if any.
    pub(super) due: Vec<(Child, Option<Pending>)>,
    /// Requests for which no fork has been requested yet.
    pub(super) line: VecDeque<Pending>,
    pub(super) requests: u64,
    pub(super) used: Instant,
    /// Whether the pool is to be evicted, because another pool needs its place.
    pub(super) unneeded: bool,
    pub(super) not_before: Instant,
    pub(super) retry: Duration,
    pub(super) state: PoolState,
}

impl Keeper {
    pub(super) fn new(number: u64, root: &Rc<Root>, interpreter: &Interpreter) -> Self {
        let now = Instant::now();
        let tongue = format!("{:?}", interpreter.tongue).to_lowercase();
        let name = std::iter::once(tongue.as_str()).chain(interpreter.preimports.iter().map(String::as_str));
        let name = name.collect::<Vec<_>>().join("+");
        Self {
            number,
            root: Rc::clone(root),
            interpreter: interpreter.clone(),
            zygote: None,
            successor: None,
            refused: Vec::new(),
            imports_nothing_ahead: false,
            shelves: Vec::new(),
            due: Vec::new(),
            line: VecDeque::new(),
            requests: 0,
            used: now,
            unneeded: false,
            not_before: now,
            retry: FIRST_RETRY,
            state: PoolState { name, tenant: interpreter.tenant.clone(), ..PoolState::default() },
        }
    }

    fn shelf(&mut self, limits: &Limits) -> &mut Shelf {
        let limits = without_timeout(limits);
        let at = self.shelves.iter().position(|shelf| shelf.limits == limits).unwrap_or_else(|| {
            self.shelves.push(Shelf::new(limits));
            self.shelves.len() - 1
        });
        &mut self.shelves[at]
    }

    /// Evicts the least recently used bucket if a bucket for these limits would exceed the maximum. There is
    /// a maximum because tenants choose their limits, and the event loop visits every bucket in every turn.
    fn make_room_for(&mut self, limits: &Limits, dying: &mut Vec<Dying>) {
        let limits = without_timeout(limits);
        if self.shelves.len() < MOST_SHELVES || self.shelves.iter().any(|shelf| shelf.limits == limits) {
            return;
        }
        let is_settled = |shelf: &Shelf| shelf.jails.iter().all(|jail| jail.built.is_some());
        let settled = self.shelves.iter().enumerate().filter(|(_, shelf)| is_settled(shelf));
        if let Some((at, _)) = settled.min_by_key(|(_, shelf)| shelf.used) {
            dying.extend(self.shelves.swap_remove(at).clear());
        }
    }

    /// Runs a request in an idle child, or returns the request if there is none.
    pub(super) fn take_waiting(
        &mut self,
        home: &Home,
        mut pending: Pending,
        dying: &mut Vec<Dying>,
    ) -> Result<Run, Pending> {
        self.make_room_for(&pending.jail.limits, dying);
        let shelf = self.shelf(&pending.jail.limits);
        shelf.used = Instant::now();
        while let Some(child) = shelf.waiting.pop() {
            shelf.fewest = shelf.fewest.min(shelf.waiting.len());
            if !child.is_well() {
                dying.push(child.discard());
                continue;
            }
            match child.order(home, &mut pending, Warmth::Pool) {
                Ok(run) => {
                    self.state.hits += 1;
                    return Ok(run);
                }
                // The request still has its descriptors: nothing was sent, or the child did not receive it.
                Err(failed) => dying.push(failed.1.discard()),
            }
        }
        Err(pending)
    }

    /// Adds an idle child to its bucket.
    pub(super) fn park(&mut self, child: Child) {
        self.shelf(&child.limits().clone()).waiting.push(child);
    }

    /// Returns whether the zygote runs and may be asked for another fork now.
    pub(super) fn room(&self) -> bool {
        self.zygote.as_ref().is_some_and(|zygote| zygote.expecting() < MOST_DUE)
    }

    /// Returns the limits of the first queued request, if a fork may be requested for it now.
    pub(super) fn next_in_line(&self) -> Option<Limits> {
        self.line.front().filter(|_| self.room()).map(|pending| pending.jail.limits)
    }

    /// Removes and returns a built jail with these limits.
    pub(super) fn take_jail(&mut self, limits: &Limits, dying: &mut Vec<Dying>) -> Option<WarmJail> {
        let shelf = self.shelf(limits);
        while let Some(at) = shelf.jails.iter().position(|jail| jail.built.is_some()) {
            let jail = shelf.jails.swap_remove(at);
            if jail.is_ready() {
                return Some(jail);
            }
            dying.push(jail.discard(None));
        }
        None
    }

    /// Returns the limits of a built jail that is reserved for an idle child, if a fork may be requested now.
    pub(super) fn jail_to_enter(&self) -> Option<Limits> {
        let mut jails = self.shelves.iter().flat_map(|shelf| &shelf.jails).filter(|_| self.room());
        jails.find(|jail| jail.for_pool && jail.built.is_some()).map(|jail| jail.limits)
    }

    /// Returns the limits of a queued request that still lacks a jail, if another jail may be built now.
    pub(super) fn jail_to_build(&self) -> Option<Limits> {
        let building = self.jails().filter(|jail| jail.built.is_none()).count();
        let next: Vec<Limits> =
            self.line.iter().take(MOST_DUE).map(|pending| without_timeout(&pending.jail.limits)).collect();
        let lacks_one = |(at, limits): &(usize, &Limits)| {
            let needed = next[..=*at].iter().filter(|other| other == limits).count();
            self.jails().filter(|jail| without_timeout(&jail.limits) == **limits).count() < needed
        };
        next.iter().enumerate().find(lacks_one).filter(|_| building < MOST_DUE).map(|(_, limits)| *limits)
    }

    /// Returns the jails that no child has entered.
    pub(super) fn jails(&self) -> impl Iterator<Item = &WarmJail> {
        self.shelves.iter().flat_map(|shelf| &shelf.jails)
    }

    pub(super) fn jail_mut(&mut self, number: u64) -> Option<&mut WarmJail> {
        self.shelves.iter_mut().flat_map(|shelf| &mut shelf.jails).find(|jail| jail.number == number)
    }

    /// Asks the builder to build a jail.
    pub(super) fn ask_for_jail(
        &mut self,
        number: u64,
        home: &mut Home,
        limits: &Limits,
        for_pool: bool,
    ) -> Result<(), StepFailed> {
        let gone = || StepFailed::new(Step::Fork, "", rustix::io::Errno::CHILD);
        let zygote = self.zygote.as_mut().ok_or_else(gone)?;
        let jail = WarmJail::ask_for(number, home, zygote, limits, for_pool)?;
        self.shelf(limits).jails.push(jail);
        Ok(())
    }

    /// Asks the zygote to fork a child into a built jail.
    pub(super) fn ask_for_child(
        &mut self,
        home: &Home,
        jail: WarmJail,
        awaited: bool,
    ) -> Result<Child, Box<(StepFailed, WarmJail)>> {
        match self.zygote.as_mut() {
            Some(zygote) => Child::ask_for(home, zygote, jail, awaited),
            None => Err(Box::new((StepFailed::new(Step::Fork, "", rustix::io::Errno::CHILD), jail))),
        }
    }

    /// Returns whether no request waits and no child is in preparation.
    pub(super) fn is_idle(&self) -> bool {
        self.line.is_empty() && self.due.is_empty()
    }

    /// Returns whether a zygote should be started: from the second request on, because a program that ran
    /// twice is likely to run again.
    pub(super) fn wants_zygote(&self, idle: Duration) -> bool {
        self.zygote.is_none() && self.requests > 1 && self.used.elapsed() < idle
    }

    /// Returns whether the pool should be dropped: it is idle, and was not used for a long time or is to be
    /// evicted.
    pub(super) fn is_forgotten(&self, now: Instant, idle: Duration) -> bool {
        self.is_idle() && (self.unneeded || now - self.used >= idle * PATIENCE)
    }

    /// Resets the retry delay, because a child passed its inspection. A zygote that merely starts does not
    /// count: otherwise one whose children fail would be restarted over and over without a delay.
    pub(super) fn mark_healthy(&mut self) {
        self.retry = FIRST_RETRY;
    }

    /// Records why the zygote failed, and delays the next start.
    pub(super) fn mark_failed(&mut self, reason: &str) {
        self.state.obstacle = Some(reason.to_owned());
        self.not_before = Instant::now() + self.retry;
        self.retry = (self.retry * 2).min(LAST_RETRY);
    }

    /// Raises the target number of the bucket, because a request found no idle child.
    pub(super) fn want_more(&mut self, limits: &Limits) {
        let shelf = self.shelf(limits);
        shelf.wanted = (shelf.wanted + 1).min(MOST_WAITING);
    }

    /// Accounts for a request that is about to take a jail, in `fork` mode: raises the target number if none
    /// is built.
    pub(super) fn note_need_of_jail(&mut self, limits: &Limits) {
        let shelf = self.shelf(limits);
        match shelf.jails.iter().filter(|jail| jail.built.is_some()).count() {
            0 => self.want_more(limits),
            built => shelf.fewest = shelf.fewest.min(built - 1),
        }
    }

    /// Estimates the memory in bytes of one more idle child.
    pub(super) fn memory_of_another(&self) -> u64 {
        let waiting = self.shelves.iter().flat_map(|shelf| &shelf.waiting);
        waiting.map(|child| child.memory_bytes).max().unwrap_or(0).max(USUAL_MEMORY)
    }

    /// Returns the limits of a bucket that has fewer idle children than its target.
    pub(super) fn shelf_to_fill(&self) -> Option<Limits> {
        let due = self.due_for_pool();
        self.shelves.iter().find(|shelf| shelf.waiting.len() + due < shelf.wanted).map(|shelf| shelf.limits)
    }

    /// Returns the limits of a bucket that has fewer idle jails than its target, the most recently used
    /// first. Only one jail is built at a time, and at most `MAX_IN_PREPARATION` are idle: each uses some
    /// twenty descriptors of the launcher.
    pub(super) fn spare_to_build(&self) -> Option<Limits> {
        let may_build = self.jails().all(|jail| jail.built.is_some()) && self.jails().count() < MOST_DUE;
        let lacking = self.shelves.iter().filter(|shelf| may_build && shelf.jails.len() < shelf.wanted);
        lacking.max_by_key(|shelf| shelf.used).map(|shelf| shelf.limits)
    }

    /// Returns the memory in bytes of idle children and jails, including those in preparation.
    pub(super) fn memory(&self) -> u64 {
        let waiting = self.shelves.iter().flat_map(|shelf| &shelf.waiting);
        let waiting: u64 = waiting.map(|child| child.memory_bytes.max(USUAL_MEMORY)).sum();
        let spare = self.jails().filter(|jail| !jail.for_pool).count() as u64;
        waiting + spare * JAIL_MEMORY + self.due_for_pool() as u64 * self.memory_of_another()
    }

    /// Returns the earliest deadline of a child or jail in preparation that no request waits for.
    pub(super) fn overdue(&self) -> Option<Instant> {
        let children =
            self.due.iter().filter(|(_, pending)| pending.is_none()).map(|(child, _)| child.overdue());
        let jails = self.jails().filter(|jail| jail.built.is_none()).map(|jail| jail.asked + READY);
        children.chain(jails).min()
    }

    /// Returns how many children in preparation will be idle.
    fn due_for_pool(&self) -> usize {
        let jails = self.jails().filter(|jail| jail.for_pool).count();
        jails + self.due.iter().filter(|(_, pending)| pending.is_none()).count()
    }

    /// Returns the interpreter without the modules that failed to import.
    pub(super) fn interpreter_to_start(&self) -> Interpreter {
        let mut interpreter = self.interpreter.clone();
        interpreter.preimports.retain(|module| !self.refused.contains(module));
        if self.imports_nothing_ahead {
            interpreter.frequent_imports.clear();
        }
        interpreter
    }

    /// Ends a demand window: lowers the targets of buckets with children that were never needed, and empties
    /// buckets that no request used. Returns what was killed.
    pub(super) fn turn_season(&mut self, now: Instant, idle: Duration) -> Vec<Dying> {
        let mut surplus = Vec::new();
        for shelf in &mut self.shelves {
            if now - shelf.used >= idle {
                shelf.wanted = 0;
            } else if shelf.fewest > 0 {
                shelf.wanted = shelf.wanted.saturating_sub(shelf.fewest.div_ceil(2)).max(1);
            }
            surplus.extend(shelf.shrink());
            shelf.fewest = shelf.waiting.len() + shelf.jails.len();
        }
        self.shelves.retain(|shelf| now - shelf.used < idle || !shelf.is_bare());
        surplus
    }

    /// Kills and removes all idle children and jails.
    pub(super) fn clear(&mut self) -> Vec<Dying> {
        self.shelves.iter_mut().flat_map(Shelf::clear).collect()
    }

    /// Kills and removes every jail that no child has entered: no other zygote can fork into it.
    pub(super) fn clear_jails(&mut self) -> Vec<Dying> {
        let jails = self.shelves.iter_mut().flat_map(|shelf| shelf.jails.drain(..));
        jails.map(|jail| jail.discard(None)).collect()
    }

    /// Returns the figures of the pool for metrics.
    pub(super) fn state(&self) -> PoolState {
        let waiting: Vec<&Child> = self.shelves.iter().flat_map(|shelf| &shelf.waiting).collect();
        PoolState {
            size: waiting.len(),
            wanted: self.shelves.iter().map(|shelf| shelf.wanted).sum(),
            memory_bytes: waiting.iter().map(|child| child.memory_bytes).sum(),
            processes: waiting.iter().filter_map(|child| child.pid()).collect(),
            ..self.state.clone()
        }
    }
}

/// Returns the limits without the timeout, which the launcher enforces and the jail does not depend on.
fn without_timeout(limits: &Limits) -> Limits {
    Limits { timeout: None, ..*limits }
}
