//! One zygote, or the wish for one, and the children that came of it.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::child::{Child, Dying, Pending};
use super::home::Home;
use super::run::Run;
use super::zygote::Zygote;
use crate::spec::{Interpreter, Limits, PoolState, Warmth};
use crate::template::Root;

/// How many children of one zygote may be due at a time; more requests wait in line.
const MOST_DUE: usize = 8;
/// How many children of a kind wait at most, whatever the demand.
const MOST_WAITING: usize = 64;
/// How many times longer than its children a zygote waits.
const PATIENCE: u32 = 10;
/// What is assumed where no control group counts.
const USUAL_MEMORY: u64 = 2 << 20;
/// After a zygote could not be started, the next try waits: first so long, then twice as long, and so on.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Children with the same limits.
pub(super) struct Shelf {
    pub(super) limits: Limits,
    pub(super) waiting: Vec<Child>,
    pub(super) wanted: usize,
    /// The fewest that waited in this season.
    pub(super) fewest: usize,
    pub(super) used: Instant,
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
        // The time that a run may take is the launcher's own business.
        let limits = Limits { timeout: None, ..*limits };
        let at = self.shelves.iter().position(|shelf| shelf.limits == limits).unwrap_or_else(|| {
            let used = Instant::now();
            self.shelves.push(Shelf { limits, waiting: Vec::new(), wanted: 1, fewest: 0, used });
            self.shelves.len() - 1
        });
        &mut self.shelves[at]
    }

    /// Runs a request with a child that waits, if one does.
    pub(super) fn take_waiting(
        &mut self,
        home: &Home,
        mut pending: Pending,
        dying: &mut Vec<Dying>,
    ) -> Result<Run, Pending> {
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
        self.shelf(&child.limits.clone()).waiting.push(child);
    }

    pub(super) fn room(&self) -> bool {
        self.zygote.as_ref().is_some_and(|zygote| zygote.expecting() < MOST_DUE)
    }

    /// The limits of the request for which a child should be asked next.
    pub(super) fn next_in_line(&self) -> Option<Limits> {
        let zygote = self.zygote.as_ref()?;
        self.line.front().filter(|_| zygote.expecting() < MOST_DUE).map(|pending| pending.jail.limits)
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

    /// Its zygote can have children.
    pub(super) fn is_well(&mut self) {
        self.retry = FIRST_RETRY;
    }

    /// Its zygote is of no use: the next one is not started at once.
    pub(super) fn is_unwell(&mut self, reason: &str) {
        self.state.obstacle = Some(reason.to_owned());
        self.not_before = Instant::now() + self.retry;
        self.retry = (self.retry * 2).min(LAST_RETRY);
    }

    /// A request found none waiting.
    pub(super) fn want_more(&mut self, limits: &Limits) {
        let shelf = self.shelf(limits);
        shelf.wanted = (shelf.wanted + 1).min(MOST_WAITING);
    }

    /// What one more that waits would hold, as far as can be told.
    pub(super) fn memory_of_another(&self) -> u64 {
        let waiting = self.shelves.iter().flat_map(|shelf| &shelf.waiting);
        waiting.map(|child| child.memory_bytes).max().unwrap_or(0).max(USUAL_MEMORY)
    }

    /// The limits of a shelf on which more should wait than do.
    pub(super) fn shelf_to_fill(&self) -> Option<Limits> {
        let due = self.due_for_nobody();
        self.shelves.iter().find(|shelf| shelf.waiting.len() + due < shelf.wanted).map(|shelf| shelf.limits)
    }

    /// What those that wait hold, and those that will.
    pub(super) fn memory(&self) -> u64 {
        let waiting = self.shelves.iter().flat_map(|shelf| &shelf.waiting);
        let waiting: u64 = waiting.map(|child| child.memory_bytes.max(USUAL_MEMORY)).sum();
        waiting + self.due_for_nobody() as u64 * self.memory_of_another()
    }

    /// When the first child that nobody waits for has taken too long to get ready.
    pub(super) fn overdue(&self) -> Option<Instant> {
        self.due.iter().filter(|(_, pending)| pending.is_none()).map(|(child, _)| child.overdue()).min()
    }

    fn due_for_nobody(&self) -> usize {
        self.due.iter().filter(|(_, pending)| pending.is_none()).count()
    }

    pub(super) fn interpreter_to_start(&self) -> Interpreter {
        let mut interpreter = self.interpreter.clone();
        interpreter.preimports.retain(|module| !self.refused.contains(module));
        if self.imports_nothing_ahead {
            interpreter.frequent_imports.clear();
        }
        interpreter
    }

    /// Fewer are kept where some were never needed, and none where nobody came; gives those that are too many.
    pub(super) fn turn_season(&mut self, now: Instant, idle: Duration) -> Vec<Child> {
        let mut surplus = Vec::new();
        for shelf in &mut self.shelves {
            if now - shelf.used >= idle {
                shelf.wanted = 0;
            } else if shelf.fewest > 0 {
                shelf.wanted = shelf.wanted.saturating_sub(shelf.fewest.div_ceil(2)).max(1);
            }
            let kept = shelf.waiting.len().min(shelf.wanted);
            surplus.extend(shelf.waiting.drain(kept..));
            shelf.fewest = shelf.waiting.len();
        }
        self.shelves.retain(|shelf| now - shelf.used < idle || !shelf.waiting.is_empty());
        surplus
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
