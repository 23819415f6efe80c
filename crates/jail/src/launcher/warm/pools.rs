//! All warm pools. Each pool has one zygote, and buckets of idle children by their limits.
//!
//! A zygote is started when the same interpreter, root tree and tenant are requested for the second time. The
//! number of idle children follows demand: it grows by one when a run finds none, shrinks when some were
//! never needed during a demand window, and drops to zero after a long time without requests. Children are
//! made ahead only when the launcher is idle. Under full load each request has its own child forked, which is
//! cheaper overall.
//!
//! A request takes an idle child (`"warm":"pool"`), or waits for a fork (`"fork"`), or starts cold (`false`)
//! if its zygote is not ready or cannot serve it. A zygote that dies, hangs or fails a step is replaced, and
//! the requests that waited for it start cold. The memory of idle children and built jails of all pools is
//! limited by `[warm] memory`.

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use belljar_model::pool::PoolMetrics;
use belljar_model::warm::{WarmPoolMode, WarmSettings};

use super::jail::WarmJail;
use super::namespaces::NamespaceSet;
use super::pool::{Bucket, PoolEvent, WarmPool};
use super::zygote::{WarmFilters, Zygote};
use super::zygote_resources::ZygoteResources;
use crate::launcher::pending_run::PendingRun;
use crate::launcher::run::Run;
use crate::launcher::setup::LauncherContext;
use crate::root_trees::BuiltRoot;
use crate::seccomp::SeccompFilter;
use crate::spec::{Jail, JailLimits, JailNetwork};
use crate::step::StepFailed;

/// Maximum number of pools, each with one zygote. The least recently used one is evicted.
pub(super) const MAX_POOLS: usize = 32;
/// How many demand windows fit into the idle time. After each window, unneeded children are dropped.
const WINDOWS_PER_IDLE_TIME: u32 = 6;

/// The result of trying to serve a request from a warm pool.
pub(crate) enum WarmStart {
    /// The request runs in an idle child.
    Started(Box<Run>),
    /// The request is queued until a child is ready.
    Queued,
    /// No pool can serve the request; start it cold.
    Cold(PendingRun),
}

/// The owner of a polled descriptor of the pools.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PoolEventSource {
    /// The zygote of the pool with this number.
    Zygote(u64),
    /// The successor of that zygote.
    Successor(u64),
    /// The child with this number.
    Child(u64),
    /// The builder of the zygote with this number.
    Builder(u64),
}

/// All warm pools, and the resources of their zygotes. Calls return events for queued requests that start and
/// for jails that were killed.
pub(crate) struct WarmPools {
    pub(super) settings: WarmSettings,
    filters: WarmFilters,
    pub(super) pools: Vec<WarmPool>,
    last_number: u64,
    /// When the current demand window began.
    window_start: Instant,
    /// Resources of zygotes, held until everything that came of the zygote has exited.
    pub(super) zygote_resources: Vec<ZygoteResources>,
    /// Events of the current call, which returns them.
    pub(super) events: Vec<PoolEvent>,
}

impl WarmPools {
    pub(crate) fn new() -> Self {
        Self {
            settings: WarmSettings::default().with_mode(WarmPoolMode::Off),
            filters: WarmFilters::new(),
            pools: Vec::new(),
            last_number: 0,
            window_start: Instant::now(),
            zygote_resources: Vec::new(),
            events: Vec::new(),
        }
    }

    pub(crate) fn apply_settings(&mut self, settings: WarmSettings) {
        self.settings = settings;
    }

    /// Serves a request from a warm pool, if one can serve it.
    pub(crate) fn serve(
        &mut self,
        context: &mut LauncherContext,
        root: &Rc<BuiltRoot>,
        pending: PendingRun,
    ) -> (WarmStart, Vec<PoolEvent>) {
        let start = self.start_or_queue(context, root, pending);
        (start, self.take_events())
    }

    fn start_or_queue(
        &mut self,
        context: &mut LauncherContext,
        root: &Rc<BuiltRoot>,
        pending: PendingRun,
    ) -> WarmStart {
        // If all jails share one uid, a request that requires its own is refused on the cold path, with the
        // reason.
        let shared = pending.jail.require_separate_uid && context.ids.missing_layer().is_some();
        let found = if shared { None } else { self.pool_for(&pending.jail, root) };
        let Some(at) = found else { return WarmStart::Cold(pending) };
        let pooling = self.settings.mode == WarmPoolMode::Pool;
        let pool = &mut self.pools[at];
        let pending = match pool.run_in_idle_child(context, pending, &mut self.events) {
            Ok(run) => return WarmStart::Started(Box::new(run)),
            Err(pending) => pending,
        };
        if !pool.zygote.as_ref().is_some_and(Zygote::is_ready) {
            pool.state.misses += 1;
            return WarmStart::Cold(pending);
        }
        pool.state.forks += 1;
        if pooling {
            pool.raise_target(&pending.jail.limits);
        } else {
            pool.note_jail_demand(&pending.jail.limits);
        }
        pool.queue.push_back(pending);
        self.request_next(context, at);
        WarmStart::Queued
    }

    /// Requests forks into built jails, for queued requests first, and jails for the rest of the queue, as
    /// many as may be in preparation at a time. If that fails, all queued requests start cold.
    pub(super) fn request_next(&mut self, context: &mut LauncherContext, at: usize) {
        if let Err(failed) = self.try_request_next(context, at) {
            self.fail_zygote(context, at, &failed.to_string());
        }
    }

    fn try_request_next(&mut self, context: &mut LauncherContext, at: usize) -> Result<(), StepFailed> {
        while let Some(limits) = self.pools[at].next_queued_limits()
            && self.request_fork(context, at, &limits, true)?
        {}
        while let Some(limits) = self.pools[at].jail_to_enter()
            && self.request_fork(context, at, &limits, false)?
        {}
        while let Some(limits) = self.pools[at].jail_to_build() {
            let number = self.next_number();
            self.pools[at].request_jail(number, context, &limits, false)?;
        }
        Ok(())
    }

    /// Requests a fork into a built jail, for the first queued request or for the pool. Returns whether there
    /// was a jail.
    fn request_fork(
        &mut self,
        context: &mut LauncherContext,
        at: usize,
        limits: &JailLimits,
        awaited: bool,
    ) -> Result<bool, StepFailed> {
        let pool = &mut self.pools[at];
        let Some(jail) = pool.take_jail(limits, &mut self.events) else { return Ok(false) };
        match pool.request_fork(context, jail, awaited) {
            Ok(child) => {
                let pending = if awaited { pool.queue.pop_front() } else { None };
                pool.preparing.push((child, pending));
                Ok(true)
            }
            Err(failed) => {
                let (failed, jail) = *failed;
                self.events.push(PoolEvent::Killed(jail.kill(None)));
                Err(failed)
            }
        }
    }

    /// Returns a namespace set to its zygote for the next jail, or releases it if it cannot be reused.
    pub(crate) fn return_namespace_set(&mut self, context: &LauncherContext, namespace_set: NamespaceSet) {
        let mut zygotes = self.pools.iter_mut().filter_map(|pool| pool.zygote.as_mut());
        let left = match zygotes.find(|zygote| zygote.owns(&namespace_set)) {
            Some(zygote) => zygote.keep_namespace_set(namespace_set).err(),
            None => Some(namespace_set),
        };
        left.into_iter().for_each(|namespace_set| context.ids.release(namespace_set.ids));
    }

    /// Samples the memory of a child that is about to be killed, for its zygote's prefault statistics.
    pub(crate) fn sample_memory(
        &mut self,
        context: &LauncherContext,
        namespace_set: &NamespaceSet,
        child: i32,
    ) {
        let mut zygotes = self.pools.iter_mut().filter_map(|pool| pool.zygote.as_mut());
        if let Some(zygote) = zygotes.find(|zygote| zygote.owns(namespace_set)) {
            zygote.sample_memory(context, child);
        }
    }

    /// Returns the seccomp filter of the process that collects a child's artifacts.
    pub(crate) fn collector_filter(&self) -> &SeccompFilter {
        self.filters.collector()
    }

    /// Returns the length of a demand window.
    fn window_length(&self) -> Duration {
        self.settings.idle / WINDOWS_PER_IDLE_TIME
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Returns the pool for a jail, creating it if needed, or `None` if such a jail cannot run warm.
    fn pool_for(&mut self, jail: &Jail, root: &Rc<BuiltRoot>) -> Option<usize> {
        let interpreter = jail.interpreter.as_ref().filter(|_| self.settings.mode != WarmPoolMode::Off)?;
        if jail.network != JailNetwork::Own || jail.host_workspace.is_some() || !jail.binds.is_empty() {
            return None;
        }
        let now = Instant::now();
        let known = |pool: &WarmPool| pool.root.number == root.number && pool.interpreter == *interpreter;
        let at = self.pools.iter().position(known).unwrap_or_else(|| {
            self.make_room_for_pool(&interpreter.tenant);
            let number = self.next_number();
            self.pools.push(WarmPool::new(number, root, interpreter));
            self.pools.len() - 1
        });
        let pool = &mut self.pools[at];
        pool.requests += 1;
        pool.last_used = now;
        Some(at)
    }

    /// Evicts a pool, or marks it for eviction, if there are too many.
    fn make_room_for_pool(&mut self, tenant: &str) {
        if self.pools.len() < MAX_POOLS {
            return;
        }
        if let Some(at) = self.pool_to_evict(tenant) {
            // Only a pool without a zygote can be removed at once; others are removed at the end of a demand
            // window.
            if self.pools[at].zygote.is_none() && self.pools[at].buckets.is_empty() {
                self.pools.swap_remove(at);
            } else {
                self.pools[at].to_evict = true;
            }
        }
    }

    /// Returns all descriptors to poll.
    pub(crate) fn watched(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PoolEventSource)> {
        let builders = self
            .zygote_resources
            .iter()
            .filter_map(|resources| Some((resources.watched()?, PoolEventSource::Builder(resources.number))));
        let pools = self.pools.iter().flat_map(|pool| {
            let zygote = pool.zygote.iter().flat_map(Zygote::watched);
            let zygote = zygote.map(|fd| (fd, PoolEventSource::Zygote(pool.number)));
            let successor = pool.successor.iter().flat_map(Zygote::watched);
            let successor = successor.map(|fd| (fd, PoolEventSource::Successor(pool.number)));
            let due = pool.preparing.iter().filter(|(child, _)| child.expects_message());
            let due = due.map(|(child, _)| (child.watched(), PoolEventSource::Child(child.number())));
            zygote.chain(successor).chain(due)
        });
        builders.chain(pools)
    }

    /// Ends a failed zygote. Requests that waited for it start cold, and another zygote is started after a
    /// delay.
    pub(super) fn fail_zygote(&mut self, context: &mut LauncherContext, at: usize, reason: &str) {
        self.shut_down_zygote(context, at);
        let pool = &mut self.pools[at];
        pool.mark_failed(reason);
        self.events.extend(pool.queue.drain(..).map(PoolEvent::StartCold));
    }

    /// Ends a zygote, its children in preparation and the jails that no child has entered. Idle children
    /// stay.
    pub(super) fn shut_down_zygote(&mut self, context: &LauncherContext, at: usize) {
        if let Some(zygote) = self.pools[at].zygote.take() {
            self.kill_zygote(context, zygote);
        }
        let pool = &mut self.pools[at];
        self.events.extend(pool.kill_jails().into_iter().map(PoolEvent::Killed));
        for (child, pending) in pool.preparing.drain(..) {
            self.events.push(PoolEvent::Killed(child.kill()));
            pool.queue.extend(pending);
        }
    }

    /// Kills a zygote. Its resources are released once it and everything that came of it have exited.
    pub(super) fn kill_zygote(&mut self, context: &LauncherContext, zygote: Zygote) {
        let number = zygote.number();
        let process = zygote.kill(context);
        if let Some(resources) = self.zygote_resources.iter_mut().find(|resources| resources.number == number)
        {
            resources.zygote_ended(process);
        }
    }

    /// Releases resources of ended zygotes, as far as possible now.
    pub(crate) fn release_zygotes(&mut self, context: &LauncherContext) {
        let all_resources = std::mem::take(&mut self.zygote_resources).into_iter();
        self.zygote_resources =
            all_resources.filter_map(|resources| resources.try_release(context)).collect();
    }

    /// Returns whether a zygote or builder remains to be reaped.
    pub(crate) fn has_unreaped(&self) -> bool {
        self.zygote_resources.iter().any(ZygoteResources::needs_sweep)
    }

    /// Starts a zygote that will replace the current one.
    fn start_successor(&mut self, context: &mut LauncherContext, at: usize) {
        let number = self.next_number();
        let pool = &mut self.pools[at];
        let interpreter = pool.interpreter_to_start();
        if let Ok((zygote, resources)) =
            Zygote::start(number, context, &self.filters, &pool.root, &interpreter)
        {
            pool.state.zygotes += 1;
            pool.successor = Some(zygote);
            self.zygote_resources.push(resources);
        }
    }

    /// Removes and returns a waiting request.
    pub(crate) fn cancel(&mut self, run: u64) -> Option<PendingRun> {
        self.take_pending(|pending| pending.run == run)
    }

    /// Removes and returns a waiting request whose deadline has passed.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<PendingRun> {
        self.take_pending(|pending| pending.deadline().is_some_and(|at| at <= now))
    }

    fn take_pending(&mut self, wanted: impl Fn(&PendingRun) -> bool) -> Option<PendingRun> {
        for pool in &mut self.pools {
            if let Some(at) = pool.queue.iter().position(&wanted) {
                return pool.queue.remove(at);
            }
            let mut due = pool.preparing.iter_mut().map(|(_, pending)| pending);
            if let Some(pending) = due.find(|pending| pending.as_ref().is_some_and(&wanted)) {
                return pending.take();
            }
        }
        None
    }

    /// Returns when [`WarmPools::handle_deadlines`] has something to do next.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let zygotes = self.pools.iter().filter_map(|pool| pool.zygote.as_ref()?.deadline());
        let pending = self.pools.iter().flat_map(|pool| {
            let due = pool.preparing.iter().filter_map(|(_, pending)| pending.as_ref());
            due.chain(&pool.queue).filter_map(PendingRun::deadline)
        });
        let window_end = (!self.pools.is_empty()).then_some(self.window_start + self.window_length());
        let retry = self
            .pools
            .iter()
            .filter(|pool| pool.wants_zygote(self.settings.idle))
            .map(|pool| pool.next_start);
        let overdue = self.pools.iter().filter_map(WarmPool::preparation_deadline);
        zygotes.chain(pending).chain(window_end).chain(retry).chain(overdue).min()
    }

    /// Handles missed deadlines, and at the end of a demand window drops what was not needed.
    #[must_use]
    pub(crate) fn handle_deadlines(&mut self, context: &mut LauncherContext, now: Instant) -> Vec<PoolEvent> {
        for at in 0..self.pools.len() {
            let deadline = self.pools[at].zygote.as_ref().and_then(Zygote::deadline);
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.fail_zygote(context, at, "the interpreter did not respond in time");
            }
            if self.pools[at].preparation_deadline().is_some_and(|overdue| overdue <= now) {
                self.pools[at].skip_preimports = true;
                self.fail_zygote(context, at, "a child took too long to preimport modules");
            }
        }
        if self.window_start + self.window_length() <= now {
            self.window_start = now;
            self.end_demand_window(context, now);
        }
        self.take_events()
    }

    /// Ends a demand window: drops unneeded children and pools, and replaces old zygotes.
    fn end_demand_window(&mut self, context: &mut LauncherContext, now: Instant) {
        for at in 0..self.pools.len() {
            let pool = &mut self.pools[at];
            let surplus = pool.shrink_idle(now, self.settings.idle);
            let expired = pool.is_expired(now, self.settings.idle);
            let old = pool.zygote.as_ref().is_some_and(Zygote::is_old) && pool.successor.is_none();
            self.events.extend(surplus.into_iter().map(PoolEvent::Killed));
            if now - pool.last_used >= self.settings.idle
                && let Some(zygote) = pool.zygote.as_mut()
            {
                zygote.release_namespace_sets(context);
            }
            if expired {
                self.shut_down_zygote(context, at);
            } else if old {
                self.start_successor(context, at);
            }
        }
        let idle = self.settings.idle;
        let over = |pool: &WarmPool| pool.zygote.is_none() && pool.is_expired(now, idle);
        self.pools.retain(|pool| !over(pool));
    }

    /// Returns how many requests wait for a child.
    pub(crate) fn waiting_requests(&self) -> usize {
        let due = |pool: &WarmPool| pool.preparing.iter().filter(|(_, pending)| pending.is_some()).count();
        self.pools.iter().map(|pool| pool.queue.len() + due(pool)).sum()
    }

    /// Returns whether a zygote, child or jail should be prepared while the launcher is idle.
    pub(crate) fn has_idle_work(&self) -> bool {
        let now = Instant::now();
        let zygote = |pool: &WarmPool| pool.wants_zygote(self.settings.idle) && pool.next_start <= now;
        self.pools.iter().any(|pool| zygote(pool) || self.bucket_to_fill(pool).is_some())
    }

    /// Prepares one zygote or one jail.
    #[must_use]
    pub(crate) fn do_idle_work(&mut self, context: &mut LauncherContext) -> Vec<PoolEvent> {
        self.prepare_one(context);
        self.take_events()
    }

    fn prepare_one(&mut self, context: &mut LauncherContext) {
        let now = Instant::now();
        if let Some(at) =
            self.pools.iter().position(|pool| pool.wants_zygote(self.settings.idle) && pool.next_start <= now)
        {
            self.start_zygote(context, at);
            return;
        }
        let fillable = |pool: &WarmPool| self.bucket_to_fill(pool);
        let found = self.pools.iter().enumerate().find_map(|(at, pool)| Some((at, fillable(pool)?)));
        let Some((at, limits)) = found else { return };
        self.make_room_for_idle(at);
        let (number, for_pool) = (self.next_number(), self.settings.mode == WarmPoolMode::Pool);
        if let Err(failed) = self.pools[at].request_jail(number, context, &limits, for_pool) {
            self.fail_zygote(context, at, &failed.to_string());
        }
    }

    fn start_zygote(&mut self, context: &mut LauncherContext, at: usize) {
        let number = self.next_number();
        let pool = &mut self.pools[at];
        pool.state.zygotes += 1;
        let started = Zygote::start(number, context, &self.filters, &pool.root, &pool.interpreter_to_start());
        match started {
            Ok((zygote, resources)) => {
                pool.zygote = Some(zygote);
                self.zygote_resources.push(resources);
            }
            Err(failed) => {
                self.fail_zygote(context, at, &failed.to_string());
            }
        }
    }

    /// Returns the limits of a bucket below its target, if there is memory for one more child or jail.
    fn bucket_to_fill(&self, pool: &WarmPool) -> Option<JailLimits> {
        pool.zygote.as_ref().filter(|zygote| zygote.is_ready())?;
        let lacking = match self.settings.mode {
            WarmPoolMode::Pool => pool.bucket_to_fill().filter(|_| pool.can_fork()),
            WarmPoolMode::Fork => pool.bucket_lacking_jails(),
            WarmPoolMode::Off => None,
        };
        lacking.filter(|_| self.may_add_idle(pool))
    }

    /// Returns whether a process belongs to the pools and will be reaped by them.
    pub(crate) fn owns_pid(&self, pid: u32) -> bool {
        self.zygote_resources.iter().any(|resources| resources.owns_pid(pid as i32))
            || self.pools.iter().any(|pool| pool_owns_pid(pool, pid))
    }

    /// Returns whether any bucket is empty.
    pub(crate) fn has_empty_bucket(&self) -> bool {
        self.pools.iter().flat_map(|pool| &pool.buckets).any(Bucket::is_empty)
    }

    /// Returns the state of every pool.
    pub(crate) fn states(&self) -> Vec<PoolMetrics> {
        self.pools.iter().map(WarmPool::state).collect()
    }

    /// Kills all zygotes, children and jails.
    #[must_use]
    pub(crate) fn kill_all(&mut self, context: &LauncherContext) -> Vec<PoolEvent> {
        for at in 0..self.pools.len() {
            self.shut_down_zygote(context, at);
            let successor = self.pools[at].successor.take();
            successor.into_iter().for_each(|zygote| self.kill_zygote(context, zygote));
            self.events.extend(self.pools[at].kill_idle().into_iter().map(PoolEvent::Killed));
        }
        self.pools.clear();
        self.take_events()
    }

    /// Returns the events of the current call.
    pub(super) fn take_events(&mut self) -> Vec<PoolEvent> {
        std::mem::take(&mut self.events)
    }
}

fn pool_owns_pid(pool: &WarmPool, pid: u32) -> bool {
    let zygotes = pool.zygote.iter().chain(&pool.successor);
    let waiting = pool.buckets.iter().flat_map(|bucket| &bucket.idle);
    let mut children = pool.preparing.iter().map(|(child, _)| child).chain(waiting);
    let mut inits = pool.jails().filter_map(WarmJail::init);
    zygotes.map(Zygote::pid).any(|zygote| zygote as u32 == pid)
        || children.any(|child| child.owns_pid(pid))
        || inits.any(|init| init.pid as u32 == pid)
}
