//! All warm pools. Each pool has one zygote, and buckets of idle children by their limits.
//!
//! A zygote is started when the same interpreter, root tree and tenant are requested for the second time. The
//! number of idle children follows demand: it grows by one when a run finds none, shrinks when some were
//! never needed during a demand window, and drops to zero after a long time without requests. Children are
//! made ahead only when the launcher is idle. Under full load each request has its own child forked, which is
//! cheaper overall.

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::child::Pending;
use super::home::Home;
use super::keeper::{Keeper, Shelf};
use super::lineage::Lineage;
use super::plot::Plot;
use super::run::Run;
use super::warm_jail::{Dying, WarmJail};
use super::zygote::{Filters, Zygote};
use crate::seccomp::Filter;
use crate::spec::{Jail, Limits, Mismatch, Network, PoolState, Settings, Warming};
use crate::step::StepFailed;
use crate::template::Root;

/// Maximum number of pools, each with one zygote. The least recently used one is evicted.
pub(super) const MOST_ZYGOTES: usize = 32;
/// How many demand windows fit into the idle time. After each window, unneeded children are dropped.
const SEASONS: u32 = 6;

/// The result of trying to serve a request from a warm pool.
pub(super) enum Served {
    /// The request runs in an idle child.
    Started(Box<Run>),
    /// The request is queued until a child is ready.
    Expecting,
    /// No pool can serve the request; start it cold.
    Cold(Pending),
}

/// A result of the pools that the event loop must act on.
pub(super) enum News {
    /// A queued request now runs.
    Started(u64, Box<Run>),
    /// A queued request must be started cold.
    FallBack(Pending),
    /// The zygote with this number is not trusted, because one of its children failed inspection. Its runs
    /// must fail.
    Distrusted(u64),
    /// The inspection result of that child.
    Mismatch(Mismatch),
}

/// The owner of a polled descriptor of the pools.
#[derive(Debug, Clone, Copy)]
pub(super) enum Crib {
    /// The zygote of the pool with this number.
    Zygote(u64),
    /// The successor of that zygote.
    Successor(u64),
    /// The child with this number.
    Child(u64),
    /// The builder of the zygote with this number.
    Builder(u64),
}

/// All warm pools, and the processes that came of them and must still be reaped.
pub(super) struct Nursery {
    pub(super) settings: Settings,
    filters: Filters,
    pub(super) keepers: Vec<Keeper>,
    next: u64,
    /// When the current demand window began.
    season: Instant,
    /// Jails of children that were killed.
    pub(super) dying: Vec<Dying>,
    /// Resources of zygotes, held until everything that came of the zygote has exited.
    pub(super) lineages: Vec<Lineage>,
    /// Results that the event loop must act on; it drains them.
    pub(super) news: Vec<News>,
}

impl Nursery {
    pub(super) fn new() -> Self {
        Self {
            settings: Settings::default(),
            filters: Filters::new(),
            keepers: Vec::new(),
            next: 0,
            season: Instant::now(),
            dying: Vec::new(),
            lineages: Vec::new(),
            news: Vec::new(),
        }
    }

    pub(super) fn keep(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Serves a request from a warm pool, if one can serve it.
    pub(super) fn serve(&mut self, home: &mut Home, root: &Rc<Root>, pending: Pending) -> Served {
        // If all jails share one uid, a request that requires its own is refused on the cold path, with the
        // reason.
        let shared = pending.jail.require_separate_uid && home.ids.gap().is_some();
        let found = if shared { None } else { self.keeper_of(&pending.jail, root) };
        let Some(at) = found else { return Served::Cold(pending) };
        let pooling = self.settings.warming == Warming::Pool;
        let keeper = &mut self.keepers[at];
        let pending = match keeper.take_waiting(home, pending, &mut self.dying) {
            Ok(run) => return Served::Started(Box::new(run)),
            Err(pending) => pending,
        };
        if !keeper.zygote.as_ref().is_some_and(Zygote::is_fertile) {
            keeper.state.misses += 1;
            return Served::Cold(pending);
        }
        keeper.state.forks += 1;
        if pooling {
            keeper.want_more(&pending.jail.limits);
        } else {
            keeper.note_need_of_jail(&pending.jail.limits);
        }
        keeper.line.push_back(pending);
        self.ask_for_next(home, at);
        Served::Expecting
    }

    /// Requests forks into built jails, for queued requests first, and jails for the rest of the queue, as
    /// many as may be in preparation at a time. If that fails, all queued requests start cold.
    pub(super) fn ask_for_next(&mut self, home: &mut Home, at: usize) {
        if let Err(failed) = self.try_next(home, at) {
            self.give_up(home, at, &failed.to_string());
        }
    }

    fn try_next(&mut self, home: &mut Home, at: usize) -> Result<(), StepFailed> {
        while let Some(limits) = self.keepers[at].next_in_line()
            && self.ask_for_child(home, at, &limits, true)?
        {}
        while let Some(limits) = self.keepers[at].jail_to_enter()
            && self.ask_for_child(home, at, &limits, false)?
        {}
        while let Some(limits) = self.keepers[at].jail_to_build() {
            let number = self.next_number();
            self.keepers[at].ask_for_jail(number, home, &limits, false)?;
        }
        Ok(())
    }

    /// Requests a fork into a built jail, for the first queued request or for the pool. Returns whether there
    /// was a jail.
    fn ask_for_child(
        &mut self,
        home: &mut Home,
        at: usize,
        limits: &Limits,
        awaited: bool,
    ) -> Result<bool, StepFailed> {
        let keeper = &mut self.keepers[at];
        let Some(jail) = keeper.take_jail(limits, &mut self.dying) else { return Ok(false) };
        match keeper.ask_for_child(home, jail, awaited) {
            Ok(child) => {
                let pending = if awaited { keeper.line.pop_front() } else { None };
                keeper.due.push((child, pending));
                Ok(true)
            }
            Err(failed) => {
                let (failed, jail) = *failed;
                self.dying.push(jail.discard(None));
                Err(failed)
            }
        }
    }

    /// Returns a namespace set to its zygote for the next jail, or releases it if it cannot be reused.
    pub(super) fn take_back(&mut self, home: &Home, plot: Plot) {
        let mut zygotes = self.keepers.iter_mut().filter_map(|keeper| keeper.zygote.as_mut());
        let left = match zygotes.find(|zygote| zygote.owns(&plot)) {
            Some(zygote) => zygote.take_back(plot).err(),
            None => Some(plot),
        };
        left.into_iter().for_each(|plot| home.ids.give_back(plot.taken));
    }

    /// Samples the memory of a child that is about to be killed, for its zygote's prefault statistics.
    pub(super) fn look_at(&mut self, home: &Home, plot: &Plot, child: i32) {
        let mut zygotes = self.keepers.iter_mut().filter_map(|keeper| keeper.zygote.as_mut());
        if let Some(zygote) = zygotes.find(|zygote| zygote.owns(plot)) {
            zygote.look_at(home, child);
        }
    }

    /// Returns the seccomp filter of the process that collects a child's artifacts.
    pub(super) fn collectors_filter(&self) -> &Filter {
        self.filters.collector()
    }

    /// Returns the length of a demand window.
    fn season_length(&self) -> Duration {
        self.settings.idle / SEASONS
    }

    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns the pool for a jail, creating it if needed, or `None` if such a jail cannot run warm.
    fn keeper_of(&mut self, jail: &Jail, root: &Rc<Root>) -> Option<usize> {
        let interpreter = jail.interpreter.as_ref().filter(|_| self.settings.warming != Warming::Off)?;
        if jail.network != Network::Own || jail.playground.is_some() || !jail.binds.is_empty() {
            return None;
        }
        let now = Instant::now();
        let known = |keeper: &Keeper| keeper.root.number == root.number && keeper.interpreter == *interpreter;
        let at = self.keepers.iter().position(known).unwrap_or_else(|| {
            self.make_room(&interpreter.tenant);
            let number = self.next_number();
            self.keepers.push(Keeper::new(number, root, interpreter));
            self.keepers.len() - 1
        });
        let keeper = &mut self.keepers[at];
        keeper.requests += 1;
        keeper.used = now;
        Some(at)
    }

    /// Evicts a pool, or marks it for eviction, if there are too many.
    fn make_room(&mut self, tenant: &str) {
        if self.keepers.len() < MOST_ZYGOTES {
            return;
        }
        if let Some(at) = self.zygote_to_give_up(tenant) {
            // Only a pool without a zygote can be removed at once; others are removed at the end of a demand
            // window.
            if self.keepers[at].zygote.is_none() && self.keepers[at].shelves.is_empty() {
                self.keepers.swap_remove(at);
            } else {
                self.keepers[at].unneeded = true;
            }
        }
    }

    /// Returns all descriptors to poll.
    pub(super) fn watched(&self) -> impl Iterator<Item = (BorrowedFd<'_>, Crib)> {
        let builders = self.lineages.iter().filter(|lineage| !lineage.builder_is_lost);
        let builders = builders.map(|lineage| (lineage.builder().watched(), Crib::Builder(lineage.number)));
        let keepers = self.keepers.iter().flat_map(|keeper| {
            let zygote = keeper.zygote.iter().flat_map(Zygote::watched);
            let zygote = zygote.map(|fd| (fd, Crib::Zygote(keeper.number)));
            let successor = keeper.successor.iter().flat_map(Zygote::watched);
            let successor = successor.map(|fd| (fd, Crib::Successor(keeper.number)));
            let due = keeper.due.iter().filter(|(child, _)| child.is_silent());
            let due = due.map(|(child, _)| (child.watched(), Crib::Child(child.number())));
            zygote.chain(successor).chain(due)
        });
        builders.chain(keepers)
    }

    /// Ends a failed zygote. Requests that waited for it start cold, and another zygote is started after a
    /// delay.
    pub(super) fn give_up(&mut self, home: &mut Home, at: usize, reason: &str) {
        self.end_zygote(home, at);
        let keeper = &mut self.keepers[at];
        keeper.mark_failed(reason);
        self.news.extend(keeper.line.drain(..).map(News::FallBack));
    }

    /// Ends a zygote, its children in preparation and the jails that no child has entered. Idle children
    /// stay.
    pub(super) fn end_zygote(&mut self, home: &Home, at: usize) {
        if let Some(zygote) = self.keepers[at].zygote.take() {
            self.end(home, zygote);
        }
        let keeper = &mut self.keepers[at];
        self.dying.extend(keeper.clear_jails());
        for (child, pending) in keeper.due.drain(..) {
            self.dying.push(child.discard());
            keeper.line.extend(pending);
        }
    }

    /// Kills a zygote. Its resources are released once it and everything that came of it have exited.
    pub(super) fn end(&mut self, home: &Home, zygote: Zygote) {
        let number = zygote.number();
        let process = zygote.end(home);
        if let Some(lineage) = self.lineages.iter_mut().find(|lineage| lineage.number == number) {
            lineage.zygote_ended(process);
        }
    }

    /// Releases resources of ended zygotes, as far as possible now.
    pub(super) fn sweep(&mut self, home: &Home) {
        let lineages = std::mem::take(&mut self.lineages).into_iter();
        self.lineages = lineages.filter_map(|lineage| lineage.sweep(home)).collect();
    }

    /// Returns whether killed processes remain to be reaped.
    pub(super) fn is_ending(&self) -> bool {
        !self.dying.is_empty() || self.lineages.iter().any(Lineage::is_ending)
    }

    /// Starts a zygote that will replace the current one.
    fn begin_succession(&mut self, home: &mut Home, at: usize) {
        let number = self.next_number();
        let keeper = &mut self.keepers[at];
        let interpreter = keeper.interpreter_to_start();
        if let Ok((zygote, lineage)) = Zygote::start(number, home, &self.filters, &keeper.root, &interpreter)
        {
            keeper.state.zygotes += 1;
            keeper.successor = Some(zygote);
            self.lineages.push(lineage);
        }
    }

    /// Removes and returns a waiting request.
    pub(super) fn cancel(&mut self, run: u64) -> Option<Pending> {
        self.take_pending(|pending| pending.run == run)
    }

    /// Removes and returns a waiting request whose deadline has passed.
    pub(super) fn expired(&mut self, now: Instant) -> Option<Pending> {
        self.take_pending(|pending| pending.deadline().is_some_and(|at| at <= now))
    }

    fn take_pending(&mut self, wanted: impl Fn(&Pending) -> bool) -> Option<Pending> {
        for keeper in &mut self.keepers {
            if let Some(at) = keeper.line.iter().position(&wanted) {
                return keeper.line.remove(at);
            }
            let mut due = keeper.due.iter_mut().map(|(_, pending)| pending);
            if let Some(pending) = due.find(|pending| pending.as_ref().is_some_and(&wanted)) {
                return pending.take();
            }
        }
        None
    }

    /// Returns when [`Nursery::tend`] has something to do next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let zygotes = self.keepers.iter().filter_map(|keeper| keeper.zygote.as_ref()?.deadline());
        let pending = self.keepers.iter().flat_map(|keeper| {
            let due = keeper.due.iter().filter_map(|(_, pending)| pending.as_ref());
            due.chain(&keeper.line).filter_map(Pending::deadline)
        });
        let season = (!self.keepers.is_empty()).then_some(self.season + self.season_length());
        let retry = self
            .keepers
            .iter()
            .filter(|keeper| keeper.wants_zygote(self.settings.idle))
            .map(|keeper| keeper.not_before);
        let overdue = self.keepers.iter().filter_map(Keeper::overdue);
        zygotes.chain(pending).chain(season).chain(retry).chain(overdue).min()
    }

    /// Handles missed deadlines, and at the end of a demand window drops what was not needed.
    pub(super) fn tend(&mut self, home: &mut Home, now: Instant) {
        for at in 0..self.keepers.len() {
            let deadline = self.keepers[at].zygote.as_ref().and_then(Zygote::deadline);
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.give_up(home, at, "the interpreter did not respond in time");
            }
            if self.keepers[at].overdue().is_some_and(|overdue| overdue <= now) {
                self.keepers[at].imports_nothing_ahead = true;
                self.give_up(home, at, "a child took too long to preimport modules");
            }
        }
        if self.season + self.season_length() <= now {
            self.season = now;
            self.turn_season(home, now);
        }
    }

    /// Ends a demand window: drops unneeded children and pools, and replaces old zygotes.
    fn turn_season(&mut self, home: &mut Home, now: Instant) {
        for at in 0..self.keepers.len() {
            let keeper = &mut self.keepers[at];
            let surplus = keeper.turn_season(now, self.settings.idle);
            let forgotten = keeper.is_forgotten(now, self.settings.idle);
            let old = keeper.zygote.as_ref().is_some_and(Zygote::is_old) && keeper.successor.is_none();
            self.dying.extend(surplus);
            if now - keeper.used >= self.settings.idle
                && let Some(zygote) = keeper.zygote.as_mut()
            {
                zygote.clear_plots(home);
            }
            if forgotten {
                self.end_zygote(home, at);
            } else if old {
                self.begin_succession(home, at);
            }
        }
        let idle = self.settings.idle;
        let over = |keeper: &Keeper| keeper.zygote.is_none() && keeper.is_forgotten(now, idle);
        self.keepers.retain(|keeper| !over(keeper));
    }

    /// Returns how many requests wait for a child.
    pub(super) fn awaited(&self) -> usize {
        let due = |keeper: &Keeper| keeper.due.iter().filter(|(_, pending)| pending.is_some()).count();
        self.keepers.iter().map(|keeper| keeper.line.len() + due(keeper)).sum()
    }

    /// Returns whether a zygote, child or jail should be prepared while the launcher is idle.
    pub(super) fn has_idle_work(&self) -> bool {
        let now = Instant::now();
        let zygote = |keeper: &Keeper| keeper.wants_zygote(self.settings.idle) && keeper.not_before <= now;
        self.keepers.iter().any(|keeper| zygote(keeper) || self.shelf_to_fill(keeper).is_some())
    }

    /// Prepares one zygote or one jail.
    pub(super) fn do_idle_work(&mut self, home: &mut Home) {
        let now = Instant::now();
        if let Some(at) = self
            .keepers
            .iter()
            .position(|keeper| keeper.wants_zygote(self.settings.idle) && keeper.not_before <= now)
        {
            self.start_zygote(home, at);
            return;
        }
        let fillable = |keeper: &Keeper| self.shelf_to_fill(keeper);
        let found = self.keepers.iter().enumerate().find_map(|(at, keeper)| Some((at, fillable(keeper)?)));
        let Some((at, limits)) = found else { return };
        self.make_room_to_wait(at);
        let (number, for_pool) = (self.next_number(), self.settings.warming == Warming::Pool);
        if let Err(failed) = self.keepers[at].ask_for_jail(number, home, &limits, for_pool) {
            self.give_up(home, at, &failed.to_string());
        }
    }

    fn start_zygote(&mut self, home: &mut Home, at: usize) {
        let number = self.next_number();
        let keeper = &mut self.keepers[at];
        keeper.state.zygotes += 1;
        let started =
            Zygote::start(number, home, &self.filters, &keeper.root, &keeper.interpreter_to_start());
        match started {
            Ok((zygote, lineage)) => {
                keeper.zygote = Some(zygote);
                self.lineages.push(lineage);
            }
            Err(failed) => {
                self.give_up(home, at, &failed.to_string());
            }
        }
    }

    /// Returns the limits of a bucket below its target, if there is memory for one more child or jail.
    fn shelf_to_fill(&self, keeper: &Keeper) -> Option<Limits> {
        keeper.zygote.as_ref().filter(|zygote| zygote.is_fertile())?;
        let lacking = match self.settings.warming {
            Warming::Pool => keeper.shelf_to_fill().filter(|_| keeper.room()),
            Warming::Fork => keeper.spare_to_build(),
            Warming::Off => None,
        };
        lacking.filter(|_| self.may_fill(keeper))
    }

    /// Returns whether a process belongs to the pools and will be reaped by them.
    pub(super) fn knows(&self, pid: u32) -> bool {
        self.lineages.iter().any(|lineage| lineage.knows(pid as i32))
            || self.keepers.iter().any(|keeper| keeper_knows(keeper, pid))
    }

    /// Returns whether any bucket is empty.
    pub(super) fn none_waits(&self) -> bool {
        self.keepers.iter().flat_map(|keeper| &keeper.shelves).any(Shelf::is_bare)
    }

    /// Returns the state of every pool.
    pub(super) fn pools(&self) -> Vec<PoolState> {
        self.keepers.iter().map(Keeper::state).collect()
    }

    /// Kills all zygotes, children and jails.
    pub(super) fn end_all(&mut self, home: &Home) {
        for at in 0..self.keepers.len() {
            self.end_zygote(home, at);
            let successor = self.keepers[at].successor.take();
            successor.into_iter().for_each(|zygote| self.end(home, zygote));
            self.dying.extend(self.keepers[at].clear());
        }
        self.keepers.clear();
    }
}

fn keeper_knows(keeper: &Keeper, pid: u32) -> bool {
    let zygotes = keeper.zygote.iter().chain(&keeper.successor);
    let waiting = keeper.shelves.iter().flat_map(|shelf| &shelf.waiting);
    let mut children = keeper.due.iter().map(|(child, _)| child).chain(waiting);
    let mut inits = keeper.jails().filter_map(WarmJail::init);
    zygotes.map(Zygote::pid).any(|zygote| zygote as u32 == pid)
        || children.any(|child| child.knows(pid))
        || inits.any(|init| init.pid as u32 == pid)
}
