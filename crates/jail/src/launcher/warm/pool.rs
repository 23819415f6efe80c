//! A warm pool: one zygote, running or yet to be started, and its pre-forked children.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use belljar_model::outcome::Warmth;
use belljar_model::pool::{ConfinementMismatch, PoolMetrics};

use super::child::{PREPARE_TIMEOUT, WarmChild};
use super::jail::WarmJail;
use super::zygote::Zygote;
use crate::launcher::pending_run::PendingRun;
use crate::launcher::reaper::DyingJail;
use crate::launcher::run::Run;
use crate::launcher::setup::LauncherContext;
use crate::root_trees::BuiltRoot;
use crate::spec::{JailLimits, WarmInterpreter};
use crate::step::{Step, StepFailed};

/// Maximum children of one zygote, and maximum jails for them, in preparation at a time. Further requests are
/// queued.
const MAX_IN_PREPARATION: usize = 8;
/// Maximum idle children in one bucket, however high the demand.
const MAX_IDLE_CHILDREN: usize = 64;
/// Maximum buckets of one pool. Children in one bucket have the same limits.
const MAX_BUCKETS: usize = 16;
/// An idle zygote is kept this many times longer than its idle children.
const ZYGOTE_IDLE_FACTOR: u32 = 10;
/// Memory in bytes assumed for a child when no cgroup counts it.
const DEFAULT_CHILD_MEMORY_BYTES: u64 = 2 << 20;
/// Kernel memory in bytes that a built jail without a child uses: a process, seven namespaces and their
/// mounts.
pub(super) const JAIL_MEMORY_BYTES: u64 = 512 << 10;
/// Delay before the next attempt after a zygote failed. It doubles with each failure, up to
/// `MAX_RETRY_DELAY`.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

/// An event of the warm pools that the event loop must act on.
pub(crate) enum PoolEvent {
    /// A queued request now runs.
    Started(u64, Box<Run>),
    /// A queued request must be started cold.
    StartCold(PendingRun),
    /// The zygote with this number is not trusted, because one of its children failed inspection. Its runs
    /// must fail.
    Distrusted(u64),
    /// The inspection result of that child.
    Mismatch(ConfinementMismatch),
    /// A jail was killed and must be reaped.
    Killed(DyingJail),
    /// The builder answered about a jail with this number that is no longer in a pool. If it was built, its
    /// PID 1 runs.
    BuiltAfterKill(u64, Option<OwnedFd>),
}

/// Idle children and jails of a pool that have the same limits.
pub(super) struct Bucket {
    pub(super) limits: JailLimits,
    pub(super) idle: Vec<WarmChild>,
    /// Jails that no child has entered yet, built or under construction.
    pub(super) jails: Vec<WarmJail>,
    /// Target number of idle children; in `fork` mode, of idle jails.
    pub(super) target: usize,
    /// The fewest that were idle at any time in the current demand window.
    pub(super) fewest_idle: usize,
    pub(super) last_used: Instant,
}

impl Bucket {
    fn new(limits: JailLimits) -> Self {
        let used = Instant::now();
        Self { limits, idle: Vec::new(), jails: Vec::new(), target: 1, fewest_idle: 0, last_used: used }
    }

    /// Returns whether it holds nothing that could speed up the next request.
    pub(super) fn is_empty(&self) -> bool {
        self.idle.is_empty() && self.jails.is_empty()
    }

    /// Removes and returns a built jail that is not reserved for an idle child.
    pub(super) fn take_unreserved_jail(&mut self) -> Option<WarmJail> {
        let at = self.jails.iter().position(|jail| jail.built.is_some() && !jail.for_pool)?;
        Some(self.jails.swap_remove(at))
    }

    /// Kills and removes all children and jails.
    fn kill_all(&mut self) -> Vec<DyingJail> {
        let waiting = self.idle.drain(..).map(WarmChild::kill);
        waiting.chain(self.jails.drain(..).map(|jail| jail.kill(None))).collect()
    }

    /// Kills and removes children and jails above the target number.
    fn shrink(&mut self) -> Vec<DyingJail> {
        let remaining = self.idle.len().min(self.target);
        let mut surplus: Vec<DyingJail> = self.idle.drain(remaining..).map(WarmChild::kill).collect();
        while self.idle.len() + self.jails.len() > self.target
            && let Some(spare) = self.take_unreserved_jail()
        {
            surplus.push(spare.kill(None));
        }
        surplus
    }
}

/// A zygote, running or yet to be started, and its idle children.
pub(super) struct WarmPool {
    pub(super) number: u64,
    pub(super) root: Rc<BuiltRoot>,
    pub(super) interpreter: WarmInterpreter,
    pub(super) zygote: Option<Zygote>,
    /// The zygote that will replace the current one, while it starts.
    pub(super) successor: Option<Zygote>,
    /// Modules that the zygote must not import.
    pub(super) failed_imports: Vec<String>,
    /// Whether children skip preimports, because one of them never finished importing.
    pub(super) skip_preimports: bool,
    pub(super) buckets: Vec<Bucket>,
    /// Children in preparation, each with the request that waits for it, if any.
    pub(super) preparing: Vec<(WarmChild, Option<PendingRun>)>,
    /// Requests for which no fork has been requested yet.
    pub(super) queue: VecDeque<PendingRun>,
    pub(super) requests: u64,
    pub(super) last_used: Instant,
    /// Whether the pool is to be evicted, because another pool needs its place.
    pub(super) to_evict: bool,
    pub(super) next_start: Instant,
    pub(super) retry_delay: Duration,
    pub(super) state: PoolMetrics,
}

impl WarmPool {
    pub(super) fn new(number: u64, root: &Rc<BuiltRoot>, interpreter: &WarmInterpreter) -> Self {
        let now = Instant::now();
        let language = format!("{:?}", interpreter.language).to_lowercase();
        let name =
            std::iter::once(language.as_str()).chain(interpreter.preimports.iter().map(String::as_str));
        let name = name.collect::<Vec<_>>().join("+");
        Self {
            number,
            root: Rc::clone(root),
            interpreter: interpreter.clone(),
            zygote: None,
            successor: None,
            failed_imports: Vec::new(),
            skip_preimports: false,
            buckets: Vec::new(),
            preparing: Vec::new(),
            queue: VecDeque::new(),
            requests: 0,
            last_used: now,
            to_evict: false,
            next_start: now,
            retry_delay: MIN_RETRY_DELAY,
            state: PoolMetrics { name, tenant: interpreter.tenant.clone(), ..PoolMetrics::default() },
        }
    }

    fn bucket(&mut self, limits: &JailLimits) -> &mut Bucket {
        let at = self.buckets.iter().position(|bucket| bucket.limits == *limits).unwrap_or_else(|| {
            self.buckets.push(Bucket::new(*limits));
            self.buckets.len() - 1
        });
        &mut self.buckets[at]
    }

    /// Evicts the least recently used bucket if a bucket for these limits would exceed the maximum. There is
    /// a maximum because tenants choose their limits, and the event loop visits every bucket in every turn.
    fn evict_bucket_for(&mut self, limits: &JailLimits, events: &mut Vec<PoolEvent>) {
        if self.buckets.len() < MAX_BUCKETS || self.buckets.iter().any(|bucket| bucket.limits == *limits) {
            return;
        }
        let is_settled = |bucket: &Bucket| bucket.jails.iter().all(|jail| jail.built.is_some());
        let settled = self.buckets.iter().enumerate().filter(|(_, bucket)| is_settled(bucket));
        if let Some((at, _)) = settled.min_by_key(|(_, bucket)| bucket.last_used) {
            events.extend(self.buckets.swap_remove(at).kill_all().into_iter().map(PoolEvent::Killed));
        }
    }

    /// Runs a request in an idle child, or returns the request if there is none.
    pub(super) fn run_in_idle_child(
        &mut self,
        context: &LauncherContext,
        mut pending: PendingRun,
        events: &mut Vec<PoolEvent>,
    ) -> Result<Run, PendingRun> {
        self.evict_bucket_for(&pending.jail.limits, events);
        let bucket = self.bucket(&pending.jail.limits);
        bucket.last_used = Instant::now();
        while let Some(child) = bucket.idle.pop() {
            bucket.fewest_idle = bucket.fewest_idle.min(bucket.idle.len());
            if !child.is_usable() {
                events.push(PoolEvent::Killed(child.kill()));
                continue;
            }
            match child.start(context, &mut pending, Warmth::Pool) {
                Ok(run) => {
                    self.state.hits += 1;
                    return Ok(run);
                }
                // The request still has its descriptors: nothing was sent, or the child did not receive it.
                Err(failed) => events.push(PoolEvent::Killed(failed.1.kill())),
            }
        }
        Err(pending)
    }

    /// Adds an idle child to its bucket.
    pub(super) fn add_idle(&mut self, child: WarmChild) {
        self.bucket(&child.limits().clone()).idle.push(child);
    }

    /// Returns whether the zygote runs and may be asked for another fork now.
    pub(super) fn can_fork(&self) -> bool {
        self.zygote.as_ref().is_some_and(|zygote| zygote.outstanding_forks() < MAX_IN_PREPARATION)
    }

    /// Returns the limits of the first queued request, if a fork may be requested for it now.
    pub(super) fn next_queued_limits(&self) -> Option<JailLimits> {
        self.queue.front().filter(|_| self.can_fork()).map(|pending| pending.jail.limits)
    }

    /// Removes and returns a built jail with these limits.
    pub(super) fn take_jail(&mut self, limits: &JailLimits, events: &mut Vec<PoolEvent>) -> Option<WarmJail> {
        let bucket = self.bucket(limits);
        while let Some(at) = bucket.jails.iter().position(|jail| jail.built.is_some()) {
            let jail = bucket.jails.swap_remove(at);
            if jail.is_ready() {
                return Some(jail);
            }
            events.push(PoolEvent::Killed(jail.kill(None)));
        }
        None
    }

    /// Returns the limits of a built jail that is reserved for an idle child, if a fork may be requested now.
    pub(super) fn jail_to_enter(&self) -> Option<JailLimits> {
        let mut jails = self.buckets.iter().flat_map(|bucket| &bucket.jails).filter(|_| self.can_fork());
        jails.find(|jail| jail.for_pool && jail.built.is_some()).map(|jail| jail.limits)
    }

    /// Returns the limits of a queued request that still lacks a jail, if another jail may be built now.
    pub(super) fn jail_to_build(&self) -> Option<JailLimits> {
        let building = self.jails().filter(|jail| jail.built.is_none()).count();
        let next: Vec<JailLimits> =
            self.queue.iter().take(MAX_IN_PREPARATION).map(|pending| pending.jail.limits).collect();
        let lacks_one = |(at, limits): &(usize, &JailLimits)| {
            let needed = next[..=*at].iter().filter(|other| other == limits).count();
            self.jails().filter(|jail| jail.limits == **limits).count() < needed
        };
        next.iter()
            .enumerate()
            .find(lacks_one)
            .filter(|_| building < MAX_IN_PREPARATION)
            .map(|(_, limits)| *limits)
    }

    /// Returns the jails that no child has entered.
    pub(super) fn jails(&self) -> impl Iterator<Item = &WarmJail> {
        self.buckets.iter().flat_map(|bucket| &bucket.jails)
    }

    pub(super) fn jail_mut(&mut self, number: u64) -> Option<&mut WarmJail> {
        self.buckets.iter_mut().flat_map(|bucket| &mut bucket.jails).find(|jail| jail.number == number)
    }

    /// Asks the builder to build a jail.
    pub(super) fn request_jail(
        &mut self,
        number: u64,
        context: &mut LauncherContext,
        limits: &JailLimits,
        for_pool: bool,
    ) -> Result<(), StepFailed> {
        let gone = || StepFailed::new(Step::Fork, "", rustix::io::Errno::CHILD);
        let zygote = self.zygote.as_mut().ok_or_else(gone)?;
        let jail = WarmJail::request(number, context, zygote, limits, for_pool)?;
        self.bucket(limits).jails.push(jail);
        Ok(())
    }

    /// Asks the zygote to fork a child into a built jail.
    pub(super) fn request_fork(
        &mut self,
        context: &LauncherContext,
        jail: WarmJail,
        awaited: bool,
    ) -> Result<WarmChild, Box<(StepFailed, WarmJail)>> {
        match self.zygote.as_mut() {
            Some(zygote) => WarmChild::request_fork(context, zygote, jail, awaited),
            None => Err(Box::new((StepFailed::new(Step::Fork, "", rustix::io::Errno::CHILD), jail))),
        }
    }

    /// Returns whether no request waits and no child is in preparation.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.preparing.is_empty()
    }

    /// Returns whether a zygote should be started: from the second request on, because a program that ran
    /// twice is likely to run again.
    pub(super) fn wants_zygote(&self, idle: Duration) -> bool {
        self.zygote.is_none() && self.requests > 1 && self.last_used.elapsed() < idle
    }

    /// Returns whether the pool should be dropped: it is idle, and was not used for a long time or is to be
    /// evicted.
    pub(super) fn is_expired(&self, now: Instant, idle: Duration) -> bool {
        self.is_idle() && (self.to_evict || now - self.last_used >= idle * ZYGOTE_IDLE_FACTOR)
    }

    /// Resets the retry delay, because a child passed its inspection. A zygote that merely starts does not
    /// count: otherwise one whose children fail would be restarted over and over without a delay.
    pub(super) fn mark_healthy(&mut self) {
        self.retry_delay = MIN_RETRY_DELAY;
    }

    /// Records why the zygote failed, and delays the next start.
    pub(super) fn mark_failed(&mut self, reason: &str) {
        self.state.obstacle = Some(reason.to_owned());
        self.next_start = Instant::now() + self.retry_delay;
        self.retry_delay = (self.retry_delay * 2).min(MAX_RETRY_DELAY);
    }

    /// Raises the target number of the bucket, because a request found no idle child.
    pub(super) fn raise_target(&mut self, limits: &JailLimits) {
        let bucket = self.bucket(limits);
        bucket.target = (bucket.target + 1).min(MAX_IDLE_CHILDREN);
    }

    /// Accounts for a request that is about to take a jail, in `fork` mode: raises the target number if none
    /// is built.
    pub(super) fn note_jail_demand(&mut self, limits: &JailLimits) {
        let bucket = self.bucket(limits);
        match bucket.jails.iter().filter(|jail| jail.built.is_some()).count() {
            0 => self.raise_target(limits),
            built => bucket.fewest_idle = bucket.fewest_idle.min(built - 1),
        }
    }

    /// Estimates the memory in bytes of one more idle child.
    pub(super) fn memory_per_child(&self) -> u64 {
        let waiting = self.buckets.iter().flat_map(|bucket| &bucket.idle);
        waiting.map(|child| child.memory_bytes).max().unwrap_or(0).max(DEFAULT_CHILD_MEMORY_BYTES)
    }

    /// Returns the limits of a bucket that has fewer idle children than its target.
    pub(super) fn bucket_to_fill(&self) -> Option<JailLimits> {
        let due = self.preparing_for_pool();
        self.buckets.iter().find(|bucket| bucket.idle.len() + due < bucket.target).map(|bucket| bucket.limits)
    }

    /// Returns the limits of a bucket that has fewer idle jails than its target, the most recently used
    /// first. Only one jail is built at a time, and at most `MAX_IN_PREPARATION` are idle: each uses some
    /// twenty descriptors of the launcher.
    pub(super) fn bucket_lacking_jails(&self) -> Option<JailLimits> {
        let may_build =
            self.jails().all(|jail| jail.built.is_some()) && self.jails().count() < MAX_IN_PREPARATION;
        let lacking = self.buckets.iter().filter(|bucket| may_build && bucket.jails.len() < bucket.target);
        lacking.max_by_key(|bucket| bucket.last_used).map(|bucket| bucket.limits)
    }

    /// Returns the memory in bytes of idle children and jails, including those in preparation.
    pub(super) fn memory_bytes(&self) -> u64 {
        let waiting = self.buckets.iter().flat_map(|bucket| &bucket.idle);
        let waiting: u64 = waiting.map(|child| child.memory_bytes.max(DEFAULT_CHILD_MEMORY_BYTES)).sum();
        let spare = self.jails().filter(|jail| !jail.for_pool).count() as u64;
        waiting + spare * JAIL_MEMORY_BYTES + self.preparing_for_pool() as u64 * self.memory_per_child()
    }

    /// Returns the earliest deadline of a child or jail in preparation that no request waits for.
    pub(super) fn preparation_deadline(&self) -> Option<Instant> {
        let children =
            self.preparing.iter().filter(|(_, pending)| pending.is_none()).map(|(child, _)| child.deadline());
        let jails =
            self.jails().filter(|jail| jail.built.is_none()).map(|jail| jail.requested + PREPARE_TIMEOUT);
        children.chain(jails).min()
    }

    /// Returns how many children in preparation will be idle.
    fn preparing_for_pool(&self) -> usize {
        let jails = self.jails().filter(|jail| jail.for_pool).count();
        jails + self.preparing.iter().filter(|(_, pending)| pending.is_none()).count()
    }

    /// Returns the interpreter without the modules that failed to import.
    pub(super) fn interpreter_to_start(&self) -> WarmInterpreter {
        let mut interpreter = self.interpreter.clone();
        interpreter.preimports.retain(|module| !self.failed_imports.contains(module));
        if self.skip_preimports {
            interpreter.frequent_imports.clear();
        }
        interpreter
    }

    /// Ends a demand window: lowers the targets of buckets with children that were never needed, and empties
    /// buckets that no request used. Returns what was killed.
    pub(super) fn shrink_idle(&mut self, now: Instant, idle: Duration) -> Vec<DyingJail> {
        let mut surplus = Vec::new();
        for bucket in &mut self.buckets {
            if now - bucket.last_used >= idle {
                bucket.target = 0;
            } else if bucket.fewest_idle > 0 {
                bucket.target = bucket.target.saturating_sub(bucket.fewest_idle.div_ceil(2)).max(1);
            }
            surplus.extend(bucket.shrink());
            bucket.fewest_idle = bucket.idle.len() + bucket.jails.len();
        }
        self.buckets.retain(|bucket| now - bucket.last_used < idle || !bucket.is_empty());
        surplus
    }

    /// Kills and removes all idle children and jails.
    pub(super) fn kill_idle(&mut self) -> Vec<DyingJail> {
        self.buckets.iter_mut().flat_map(Bucket::kill_all).collect()
    }

    /// Kills and removes every jail that no child has entered: no other zygote can fork into it.
    pub(super) fn kill_jails(&mut self) -> Vec<DyingJail> {
        let jails = self.buckets.iter_mut().flat_map(|bucket| bucket.jails.drain(..));
        jails.map(|jail| jail.kill(None)).collect()
    }

    /// Returns the figures of the pool for metrics.
    pub(super) fn state(&self) -> PoolMetrics {
        let waiting: Vec<&WarmChild> = self.buckets.iter().flat_map(|bucket| &bucket.idle).collect();
        PoolMetrics {
            size: waiting.len(),
            wanted: self.buckets.iter().map(|bucket| bucket.target).sum(),
            memory_bytes: waiting.iter().map(|child| child.memory_bytes).sum(),
            processes: waiting.iter().filter_map(|child| child.pid()).collect(),
            ..self.state.clone()
        }
    }
}
