//! One zygote, or the wish for one, and the children that came of it.

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

/// How many children of one zygote, and how many of their jails, are made at a time; more requests wait in line.
const MOST_DUE: usize = 8;
/// How many children of a kind wait at most, whatever the demand.
const MOST_WAITING: usize = 64;
/// How many kinds of children, by their limits, are kept for one zygote.
const MOST_SHELVES: usize = 16;
/// How many times longer than its children a zygote waits.
const PATIENCE: u32 = 10;
/// What is assumed where no control group counts.
const USUAL_MEMORY: u64 = 2 << 20;
/// What a built jail with no child in it holds of the kernel's memory: a process, seven namespaces and their mounts.
pub(super) const JAIL_MEMORY: u64 = 512 << 10;
/// After a zygote could not be started, the next try waits: first so long, then twice as long, and so on.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Children and jails with the same limits.
pub(super) struct Shelf {
    pub(super) limits: Limits,
    pub(super) waiting: Vec<Child>,
    /// Jails that no child has entered, built or being built.
    pub(super) jails: Vec<WarmJail>,
    /// How many children are to wait; in `fork` mode, how many jails.
    pub(super) wanted: usize,
    /// The fewest that waited in this season.
    pub(super) fewest: usize,
    pub(super) used: Instant,
}

impl Shelf {
    fn new(limits: Limits) -> Self {
        let used = Instant::now();
        Self { limits, waiting: Vec::new(), jails: Vec::new(), wanted: 1, fewest: 0, used }
    }

    /// Whether nothing on it makes the next request faster.
    pub(super) fn is_bare(&self) -> bool {
        self.waiting.is_empty() && self.jails.is_empty()
    }

    /// Removes a jail that is built and that no child is to wait in.
    pub(super) fn take_spare(&mut self) -> Option<WarmJail> {
        let at = self.jails.iter().position(|jail| jail.built.is_some() && !jail.for_pool)?;
        Some(self.jails.swap_remove(at))
    }

    /// Removes everything.
    fn clear(&mut self) -> Vec<Dying> {
        let waiting = self.waiting.drain(..).map(Child::discard);
        waiting.chain(self.jails.drain(..).map(|jail| jail.discard(None))).collect()
    }

    /// Removes what is more than wanted.
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

/// A zygote, or the wish for one.
pub(super) struct Keeper {
    pub(super) number: u64,
    pub(super) root: Rc<Root>,
    pub(super) interpreter: Interpreter,
    pub(super) zygote: Option<Zygote>,
    /// The one that will take its place, while it starts.
    pub(super) successor: Option<Zygote>,
    /// Modules that it goes without.
    pub(super) refused: Vec<String>,
    /// Whether its children import nothing ahead of time, because one of them did not come back from it.
    pub(super) imports_nothing_ahead: bool,
    pub(super) shelves: Vec<Shelf>,
    /// Children that are due, and for whom, if for anybody.
    pub(super) due: Vec<(Child, Option<Pending>)>,
    /// Requests for which no child was asked yet.
    pub(super) line: VecDeque<Pending>,
    pub(super) requests: u64,
    pub(super) used: Instant,
    /// Another one needs its room.
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

    /// Makes room for a shelf with these limits: the one that was not used for longest goes. Tenants choose their limits,
    /// and the launcher's loop looks at every shelf in every turn.
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

    /// Runs a request with a child that waits, if one does.
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
                // Its descriptors are still there: nothing was sent, or nobody took it.
                Err(failed) => dying.push(failed.1.discard()),
            }
        }
        Err(pending)
    }

    pub(super) fn park(&mut self, child: Child) {
        self.shelf(&child.limits().clone()).waiting.push(child);
    }

    pub(super) fn room(&self) -> bool {
        self.zygote.as_ref().is_some_and(|zygote| zygote.expecting() < MOST_DUE)
    }

    /// The limits of the request for which a child should be asked next.
    pub(super) fn next_in_line(&self) -> Option<Limits> {
        self.line.front().filter(|_| self.room()).map(|pending| pending.jail.limits)
    }

    /// Removes a built jail with these limits.
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

    /// The limits of a built jail in which a child is to wait, if another child may be asked for.
    pub(super) fn jail_to_enter(&self) -> Option<Limits> {
        let mut jails = self.shelves.iter().flat_map(|shelf| &shelf.jails).filter(|_| self.room());
        jails.find(|jail| jail.for_pool && jail.built.is_some()).map(|jail| jail.limits)
    }

    /// The limits of a request in line for which no jail is being built yet, if another one may be.
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

    /// The jails that no child has entered.
    pub(super) fn jails(&self) -> impl Iterator<Item = &WarmJail> {
        self.shelves.iter().flat_map(|shelf| &shelf.jails)
    }

    pub(super) fn jail_mut(&mut self, number: u64) -> Option<&mut WarmJail> {
        self.shelves.iter_mut().flat_map(|shelf| &mut shelf.jails).find(|jail| jail.number == number)
    }

    /// Asks the builder for a jail.
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

    /// Asks the zygote for a child in a built jail.
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

    pub(super) fn is_idle(&self) -> bool {
        self.line.is_empty() && self.due.is_empty()
    }

    /// Something that is run for the second time is likely to be run again.
    pub(super) fn wants_zygote(&self, idle: Duration) -> bool {
        self.zygote.is_none() && self.requests > 1 && self.used.elapsed() < idle
    }

    /// Whether nobody came for very long.
    pub(super) fn is_forgotten(&self, now: Instant, idle: Duration) -> bool {
        self.is_idle() && (self.unneeded || now - self.used >= idle * PATIENCE)
    }

    /// One of its zygote's children passed its inspection. A zygote that merely starts has shown nothing yet: one whose
    /// children fail would otherwise be started again and again without a pause.
    pub(super) fn mark_healthy(&mut self) {
        self.retry = FIRST_RETRY;
    }

    /// Its zygote is of no use: the next one is not started at once.
    pub(super) fn mark_failed(&mut self, reason: &str) {
        self.state.obstacle = Some(reason.to_owned());
        self.not_before = Instant::now() + self.retry;
        self.retry = (self.retry * 2).min(LAST_RETRY);
    }

    /// A request found no child waiting.
    pub(super) fn want_more(&mut self, limits: &Limits) {
        let shelf = self.shelf(limits);
        shelf.wanted = (shelf.wanted + 1).min(MOST_WAITING);
    }

    /// A request is about to take a jail, in `fork` mode: one more is wanted where none is built.
    pub(super) fn note_need_of_jail(&mut self, limits: &Limits) {
        let shelf = self.shelf(limits);
        match shelf.jails.iter().filter(|jail| jail.built.is_some()).count() {
            0 => self.want_more(limits),
            built => shelf.fewest = shelf.fewest.min(built - 1),
        }
    }

    /// What one more that waits would hold, as far as can be told.
    pub(super) fn memory_of_another(&self) -> u64 {
        let waiting = self.shelves.iter().flat_map(|shelf| &shelf.waiting);
        waiting.map(|child| child.memory_bytes).max().unwrap_or(0).max(USUAL_MEMORY)
    }

    /// The limits of a shelf on which more children should wait than do.
    pub(super) fn shelf_to_fill(&self) -> Option<Limits> {
        let due = self.due_for_pool();
        self.shelves.iter().find(|shelf| shelf.waiting.len() + due < shelf.wanted).map(|shelf| shelf.limits)
    }

    /// The limits of a shelf on which more jails should wait than do, the one used last first. One is built at a time, and
    /// no more wait than children can be made at a time: each takes some twenty descriptors of the launcher's.
    pub(super) fn spare_to_build(&self) -> Option<Limits> {
        let may_build = self.jails().all(|jail| jail.built.is_some()) && self.jails().count() < MOST_DUE;
        let lacking = self.shelves.iter().filter(|shelf| may_build && shelf.jails.len() < shelf.wanted);
        lacking.max_by_key(|shelf| shelf.used).map(|shelf| shelf.limits)
    }

    /// What those that wait hold, and those that will.
    pub(super) fn memory(&self) -> u64 {
        let waiting = self.shelves.iter().flat_map(|shelf| &shelf.waiting);
        let waiting: u64 = waiting.map(|child| child.memory_bytes.max(USUAL_MEMORY)).sum();
        let spare = self.jails().filter(|jail| !jail.for_pool).count() as u64;
        waiting + spare * JAIL_MEMORY + self.due_for_pool() as u64 * self.memory_of_another()
    }

    /// When the first child or jail that no request waits for has taken too long to get ready.
    pub(super) fn overdue(&self) -> Option<Instant> {
        let children =
            self.due.iter().filter(|(_, pending)| pending.is_none()).map(|(child, _)| child.overdue());
        let jails = self.jails().filter(|jail| jail.built.is_none()).map(|jail| jail.asked + READY);
        children.chain(jails).min()
    }

    /// How many children will wait that do not yet.
    fn due_for_pool(&self) -> usize {
        let jails = self.jails().filter(|jail| jail.for_pool).count();
        jails + self.due.iter().filter(|(_, pending)| pending.is_none()).count()
    }

    pub(super) fn interpreter_to_start(&self) -> Interpreter {
        let mut interpreter = self.interpreter.clone();
        interpreter.preimports.retain(|module| !self.refused.contains(module));
        if self.imports_nothing_ahead {
            interpreter.frequent_imports.clear();
        }
        interpreter
    }

    /// Keeps fewer where some were never needed, and none where no request came; gives those that are too many.
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

    /// Removes everything that waits.
    pub(super) fn clear(&mut self) -> Vec<Dying> {
        self.shelves.iter_mut().flat_map(Shelf::clear).collect()
    }

    /// Removes every jail that no child has entered: no other zygote can have a child in it.
    pub(super) fn clear_jails(&mut self) -> Vec<Dying> {
        let jails = self.shelves.iter_mut().flat_map(|shelf| shelf.jails.drain(..));
        jails.map(|jail| jail.discard(None)).collect()
    }

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

/// The limits that a jail is built with. The time that a run may take is the launcher's own business.
fn without_timeout(limits: &Limits) -> Limits {
    Limits { timeout: None, ..*limits }
}
