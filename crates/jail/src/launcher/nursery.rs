//! Everything that is kept warm: zygotes by what they are, and below each the children that wait, by the limits that hold
//! them.
//!
//! A zygote is started when something is run for the second time. The number of children that wait follows demand: one
//! more whenever a run found none, one less whenever some were never needed for a while, none when nobody came for
//! long. Making them is idle work: under full load nobody waits for requests, so each request has its own
//! child made, which is cheaper for all.

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

/// How many zygotes there are at most; the one that was not used for longest makes room.
pub(super) const MOST_ZYGOTES: usize = 32;
/// How long demand is looked at before fewer are kept, as a part of how long children wait.
const SEASONS: u32 = 6;

/// What came of a request.
pub(super) enum Served {
    /// It runs.
    Started(Box<Run>),
    /// It will run when a child is ready.
    Expecting,
    /// Nothing is warm for it.
    Cold(Pending),
}

/// What the loop has to deal with.
pub(super) enum News {
    /// A request that had to wait runs.
    Started(u64, Box<Run>),
    /// A request that waited has to be started cold.
    FallBack(Pending),
    /// What runs and came of this zygote is not to be believed: one of its children was not what it said.
    Distrusted(u64),
    /// What was seen of that child.
    Mismatch(Mismatch),
}

/// Where a descriptor belongs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Crib {
    Zygote(u64),
    Successor(u64),
    Child(u64),
    /// The builder of the zygote of that number.
    Builder(u64),
}

pub(super) struct Nursery {
    pub(super) settings: Settings,
    filters: Filters,
    pub(super) keepers: Vec<Keeper>,
    next: u64,
    season: Instant,
    /// Children that were killed.
    pub(super) dying: Vec<Dying>,
    /// Zygotes and what came of them, until all of it is gone.
    pub(super) lineages: Vec<Lineage>,
    /// What the loop has to deal with.
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

    /// Serves a request with what is warm, if anything is.
    pub(super) fn serve(&mut self, home: &mut Home, root: &Rc<Root>, pending: Pending) -> Served {
        // Where ids are shared, a request that requires its own is refused on the cold path, with the reason.
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

    /// Asks for children in the jails that are built, those for requests first, and for jails for the rest of the line, as
    /// many as may be made at a time. Where that fails all of them start cold.
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

    /// Asks for a child in a built jail, if there is one: for the first request in line, or to wait.
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

    /// Takes back what a jail stood on, for the next one of the same zygote; what cannot be used again is given up.
    pub(super) fn take_back(&mut self, home: &Home, plot: Plot) {
        let mut zygotes = self.keepers.iter_mut().filter_map(|keeper| keeper.zygote.as_mut());
        let left = match zygotes.find(|zygote| zygote.owns(&plot)) {
            Some(zygote) => zygote.take_back(plot).err(),
            None => Some(plot),
        };
        left.into_iter().for_each(|plot| home.ids.give_back(plot.taken));
    }

    /// A child of the zygote for which this plot was made is about to be killed.
    pub(super) fn look_at(&mut self, home: &Home, plot: &Plot, child: i32) {
        let mut zygotes = self.keepers.iter_mut().filter_map(|keeper| keeper.zygote.as_mut());
        if let Some(zygote) = zygotes.find(|zygote| zygote.owns(plot)) {
            zygote.look_at(home, child);
        }
    }

    /// What the one who collects a child's artifacts wears.
    pub(super) fn collectors_filter(&self) -> &Filter {
        self.filters.collector()
    }

    fn season_length(&self) -> Duration {
        self.settings.idle / SEASONS
    }

    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The keeper for a jail: a new one where there is none, and nothing where it cannot be warm.
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

    fn make_room(&mut self, tenant: &str) {
        if self.keepers.len() < MOST_ZYGOTES {
            return;
        }
        if let Some(at) = self.zygote_to_give_up(tenant) {
            // Only one without a zygote can go at once; the others go when they are forgotten.
            if self.keepers[at].zygote.is_none() && self.keepers[at].shelves.is_empty() {
                self.keepers.swap_remove(at);
            } else {
                self.keepers[at].unneeded = true;
            }
        }
    }

    /// Everything to poll.
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

    /// The zygote is of no use any more: what waited for it starts cold, and another one is started soon.
    pub(super) fn give_up(&mut self, home: &mut Home, at: usize, reason: &str) {
        self.end_zygote(home, at);
        let keeper = &mut self.keepers[at];
        keeper.mark_failed(reason);
        self.news.extend(keeper.line.drain(..).map(News::FallBack));
    }

    /// Ends a zygote, the children that are due and the jails that no child has entered; children that wait, wait on.
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

    /// Ends a zygote; its lineage waits for it, and for what came of it.
    pub(super) fn end(&mut self, home: &Home, zygote: Zygote) {
        let number = zygote.number();
        let process = zygote.end(home);
        if let Some(lineage) = self.lineages.iter_mut().find(|lineage| lineage.number == number) {
            lineage.zygote_ended(process);
        }
    }

    /// Goes on with the end of zygotes and of what came of them.
    pub(super) fn sweep(&mut self, home: &Home) {
        let lineages = std::mem::take(&mut self.lineages).into_iter();
        self.lineages = lineages.filter_map(|lineage| lineage.sweep(home)).collect();
    }

    /// Whether something has ended and is to be waited for.
    pub(super) fn is_ending(&self) -> bool {
        !self.dying.is_empty() || self.lineages.iter().any(Lineage::is_ending)
    }

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

    /// Ends a request that waits; whether there was one.
    pub(super) fn cancel(&mut self, run: u64) -> Option<Pending> {
        self.take_pending(|pending| pending.run == run)
    }

    /// A request that waits and whose time is over.
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

    /// What has to be looked at by itself, and when.
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

    /// Looks at what is late, and at the end of a season at what was not needed.
    pub(super) fn tend(&mut self, home: &mut Home, now: Instant) {
        for at in 0..self.keepers.len() {
            let deadline = self.keepers[at].zygote.as_ref().and_then(Zygote::deadline);
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.give_up(home, at, "it was silent for too long");
            }
            if self.keepers[at].overdue().is_some_and(|overdue| overdue <= now) {
                self.keepers[at].imports_nothing_ahead = true;
                self.give_up(home, at, "a child took too long to import modules ahead of time");
            }
        }
        if self.season + self.season_length() <= now {
            self.season = now;
            self.turn_season(home, now);
        }
    }

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

    /// How many requests wait for a child.
    pub(super) fn awaited(&self) -> usize {
        let due = |keeper: &Keeper| keeper.due.iter().filter(|(_, pending)| pending.is_some()).count();
        self.keepers.iter().map(|keeper| keeper.line.len() + due(keeper)).sum()
    }

    /// Whether something should be made ready when there is nothing else to do.
    pub(super) fn has_idle_work(&self) -> bool {
        let now = Instant::now();
        let zygote = |keeper: &Keeper| keeper.wants_zygote(self.settings.idle) && keeper.not_before <= now;
        self.keepers.iter().any(|keeper| zygote(keeper) || self.shelf_to_fill(keeper).is_some())
    }

    /// Makes one thing ready.
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

    /// The limits of a shelf on which more children or jails should wait than do.
    fn shelf_to_fill(&self, keeper: &Keeper) -> Option<Limits> {
        keeper.zygote.as_ref().filter(|zygote| zygote.is_fertile())?;
        let lacking = match self.settings.warming {
            Warming::Pool => keeper.shelf_to_fill().filter(|_| keeper.room()),
            Warming::Fork => keeper.spare_to_build(),
            Warming::Off => None,
        };
        lacking.filter(|_| self.may_fill(keeper))
    }

    /// Whether a process is one that will be waited for.
    pub(super) fn knows(&self, pid: u32) -> bool {
        self.lineages.iter().any(|lineage| lineage.knows(pid as i32))
            || self.keepers.iter().any(|keeper| keeper_knows(keeper, pid))
    }

    /// Whether there is a kind of request for which nothing waits.
    pub(super) fn none_waits(&self) -> bool {
        self.keepers.iter().flat_map(|keeper| &keeper.shelves).any(Shelf::is_bare)
    }

    /// What is kept ready.
    pub(super) fn pools(&self) -> Vec<PoolState> {
        self.keepers.iter().map(Keeper::state).collect()
    }

    /// Ends everything.
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
