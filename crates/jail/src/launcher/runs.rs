//! All runs of a launcher, and the resources still to be reaped or removed after them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_model::denial::Denials;
use belljar_model::outcome::{Usage, Warmth};
use belljar_model::pool::PoolMetrics;
use rustix::io::Errno;

use super::cold::spares::SpareJails;
use super::cold::start::{ColdFilters, SetupRequest, all_binds, set_up_jail};
use super::guest_binary::GuestSealer;
use super::memory_share::MemoryShares;
use super::pending_run::PendingRun;
use super::reaper::{Reaper, SWEEP_INTERVAL};
use super::recyclable::{IdSource, Recyclable};
use super::run::Run;
use super::run_state::{RunEvent, RunState};
use super::setup::LauncherContext;
use super::warm::pool::PoolEvent;
use super::warm::pools::{PoolEventSource, WarmPools, WarmStart};
use super::watch::notify_budget::NotifyBudget;
use crate::cgroup::Group;
use crate::inside::SetupReport;
use crate::root_trees::RootTrees;
use crate::spec::{Jail, JailEnding, JailNetwork, LauncherSettings, RootTree};
use crate::step::{Step, StepFailed};
use crate::sys;
use crate::wire::LauncherEvent;

/// How long the launcher must be idle before it sets up spare jails.
const SPARE_IDLE_DELAY: Duration = Duration::from_millis(3);
/// How long the launcher must be idle before it prepares warm children. Shorter, and the preparation competes
/// with the client, which handles the answer of the run that has just ended.
const WARM_IDLE_DELAY: Duration = Duration::from_millis(1);
/// Maximum unknown zombies reaped in one sweep.
const MAX_UNKNOWN_ZOMBIES: usize = 256;

/// After an out-of-memory event that killed no process, the run is checked again after this time, this many
/// times.
const OOM_CHECK_INTERVAL: Duration = Duration::from_millis(50);
const MAX_OOM_CHECKS: u32 = 10;

/// The source of a poll event.
#[derive(Debug, Clone, Copy)]
pub(super) enum EventSource {
    /// PID 1 of a run has written to its report pipe, or closed it.
    Report(u64),
    /// The cgroup of a run ran out of memory.
    OutOfMemory(u64),
    /// PID 1 of a run has exited.
    InitExited(u64),
    /// A seccomp listener of a run has a notification.
    Notification(u64),
    /// The warm child of a run has exited.
    ChildExited(u64),
    /// The artifact collector of a run has exited.
    CollectorExited(u64),
    /// The process that copies the guest binary has exited.
    GuestCopied,
    /// A descriptor of the warm pools.
    Pool(PoolEventSource),
}

/// All runs, and everything the launcher keeps from one run to the next.
pub(super) struct Runs {
    pub(super) context: LauncherContext,
    spare_jails: SpareJails,
    templates: RootTrees,
    filters: ColdFilters,
    pub(super) running: Vec<(u64, Run)>,
    reaper: Reaper,
    warm_pools: WarmPools,
    processors: usize,
    pub(super) memory_shares: MemoryShares,
    /// How many denied system calls of sandboxes may still be handled.
    pub(super) notify_budget: NotifyBudget,
    /// The copy of the guest binary, while it is in progress.
    pub(super) guest_sealer: Option<GuestSealer>,
}

impl Runs {
    pub(super) fn new(context: LauncherContext) -> Self {
        Self {
            context,
            spare_jails: SpareJails::default(),
            templates: RootTrees::default(),
            filters: ColdFilters::new(),
            running: Vec::new(),
            reaper: Reaper::new(),
            warm_pools: WarmPools::new(),
            notify_budget: NotifyBudget::new(Instant::now()),
            guest_sealer: None,
            memory_shares: MemoryShares::new(Instant::now()),
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        }
    }

    /// Applies new settings for what to keep warm.
    pub(super) fn apply_settings(&mut self, settings: LauncherSettings) {
        if let Some(memory_bytes) = settings.total_memory_bytes {
            self.context.groups.set_total_memory_limit(memory_bytes);
        }
        self.warm_pools.apply_settings(settings.warm);
    }

    /// Stores a root tree under its number.
    pub(super) fn add_root(&mut self, number: u64, tree: RootTree) {
        self.templates.register(number, tree);
    }

    /// Returns the state of every warm pool.
    pub(super) fn pools(&self) -> Vec<PoolMetrics> {
        self.warm_pools.states()
    }

    /// Starts a run, from a warm pool if possible.
    pub(super) fn start(&mut self, run: u64, jail: Box<Jail>, fds: Vec<OwnedFd>) -> Vec<LauncherEvent> {
        let pending = PendingRun { run, jail, fds, started: Instant::now() };
        let (started, events) = if pending.jail.is_sandbox {
            (self.start_sandbox(pending), Vec::new())
        } else {
            self.start_warm(pending)
        };
        let mut events = self.handle_pool_events(events);
        events.extend(started.err().map(|failure| LauncherEvent::Failed { run, failure }));
        events
    }

    /// Starts a run from a warm pool, or else cold.
    fn start_warm(&mut self, pending: PendingRun) -> (Result<(), StepFailed>, Vec<PoolEvent>) {
        let root = match self.templates.get_or_build(pending.jail.root) {
            Ok(root) => root,
            Err(failed) => return (Err(failed), Vec::new()),
        };
        let run = pending.run;
        let (start, events) = self.warm_pools.serve(&mut self.context, &root, pending);
        let started = match start {
            WarmStart::Started(warm) => {
                self.add_run(run, *warm);
                Ok(())
            }
            WarmStart::Queued => Ok(()),
            WarmStart::Cold(pending) => self.start_cold(&pending),
        };
        (started, events)
    }

    /// Starts a run in a jail of its own: a spare one, or a new one.
    pub(super) fn start_cold(&mut self, pending: &PendingRun) -> Result<(), StepFailed> {
        let jail = &*pending.jail;
        let root = self.templates.get_or_build(jail.root)?;
        let binds = all_binds(jail);
        let (gate, fds) = match (jail.network, pending.fds.split_last()) {
            (JailNetwork::Proxied | JailNetwork::Tun, Some((gate, fds))) => (Some(gate), fds),
            _ => (None, pending.fds.as_slice()),
        };
        let (disk_mount, fds) = match fds.split_last() {
            Some((mount, fds)) if jail.has_disk_file && jail.is_sandbox => (Some(mount), fds),
            _ => (None, fds),
        };
        let spare = if jail.network == JailNetwork::Own && binds.is_empty() && jail.commands.len() == 1 {
            let (spare, useless) = self.spare_jails.take(jail, &root);
            useless.into_iter().for_each(|spare| self.reaper.push(spare.kill()));
            spare
        } else {
            None
        };
        let spare = match spare {
            Some(spare) => spare,
            None => {
                let commands = jail.commands.len();
                let (network, is_sandbox) = (jail.network, jail.is_sandbox);
                let request = SetupRequest {
                    root: &root,
                    network,
                    binds,
                    commands,
                    is_sandbox,
                    gate,
                    disk_mount,
                    writable_root: jail.writable_root && jail.is_sandbox,
                };
                set_up_jail(&mut self.context, &self.filters, &request)?
            }
        };
        match spare.start(&self.context, jail, fds, pending.started) {
            Ok(started) => {
                self.add_run(pending.run, started);
                Ok(())
            }
            Err(failed) => {
                let (failed, spare) = *failed;
                self.reaper.push(spare.kill());
                Err(failed)
            }
        }
    }

    /// Acts on events of the warm pools.
    fn handle_pool_events(&mut self, pool_events: Vec<PoolEvent>) -> Vec<LauncherEvent> {
        let mut events = Vec::new();
        for event in pool_events {
            match event {
                PoolEvent::Started(run, warm) => self.add_run(run, *warm),
                PoolEvent::StartCold(pending) => {
                    let failed = self.start_cold(&pending).err();
                    events.extend(failed.map(|failure| LauncherEvent::Failed { run: pending.run, failure }));
                }
                PoolEvent::Mismatch(mismatch) => events.push(LauncherEvent::Mismatch(mismatch)),
                PoolEvent::Distrusted(zygote) => events.extend(self.fail_runs_of(zygote)),
                PoolEvent::Killed(jail) => self.reaper.push(jail),
                PoolEvent::BuiltAfterKill(jail, init) => self.reaper.set_built(&self.context, jail, init),
            }
        }
        events
    }

    /// Kills the runs that came of an untrusted zygote, and reports each as failed rather than ended.
    fn fail_runs_of(&mut self, zygote: u64) -> Vec<LauncherEvent> {
        let theirs = self
            .running
            .iter_mut()
            .filter(|(_, run)| run.zygote() == Some(zygote) && !run.state.is_answered());
        let failure = || StepFailed::new(Step::Init, "(its warm interpreter was not confined)", Errno::PERM);
        theirs
            .map(|(number, run)| {
                run.kill();
                run.failed(*number, failure())
            })
            .collect()
    }

    /// Recycles the resources of a jail for later jails.
    fn recycle(&mut self, recyclable: Recyclable) {
        let free = self.reaper.recycle(&mut self.context, recyclable);
        self.release_ids(free);
    }

    /// Releases id leases, and returns namespace sets to their zygotes.
    fn release_ids(&mut self, free: impl IntoIterator<Item = IdSource>) {
        for ids in free {
            match ids {
                IdSource::Lease(ids) => self.context.ids.release(ids),
                IdSource::NamespaceSet(namespace_set) => {
                    self.warm_pools.return_namespace_set(&self.context, *namespace_set);
                }
            }
        }
    }

    /// Returns all descriptors to poll.
    pub(super) fn watched(&self) -> Vec<(BorrowedFd<'_>, EventSource)> {
        let mut watched = Vec::new();
        let now = Instant::now();
        for (number, run) in &self.running {
            if let Some(collector) = run.state.collector() {
                watched.push((collector.as_fd(), EventSource::CollectorExited(*number)));
                continue;
            }
            let is_running = run.state.is_running();
            if let Some(report) = run.report.as_ref().filter(|_| is_running) {
                watched.push((report.as_fd(), EventSource::Report(*number)));
            }
            let listeners = run.listener.watched(&self.notify_budget, now).filter(|_| is_running);
            watched.extend(listeners.map(|fd| (fd, EventSource::Notification(*number))));
            if let Some(child) = &run.child {
                let ended =
                    (!child.is_reaped()).then_some((child.pidfd.as_fd(), EventSource::ChildExited(*number)));
                watched.extend(ended);
            }
            let memory_ends_it = !run.state.is_answered() && !run.is_sandbox();
            if let Some(event) = run.group().and_then(Group::oom_event).filter(|_| memory_ends_it) {
                watched.push((event, EventSource::OutOfMemory(*number)));
            }
            watched.push((run.pidfd.as_fd(), EventSource::InitExited(*number)));
        }
        watched
            .extend(self.guest_sealer.iter().map(|sealer| (sealer.copier.as_fd(), EventSource::GuestCopied)));
        watched.extend(self.warm_pools.watched().map(|(fd, source)| (fd, EventSource::Pool(source))));
        watched
    }

    pub(super) fn find_with_context(&mut self, number: u64) -> Option<(&mut Run, &LauncherContext)> {
        let run = self.running.iter_mut().find(|(found, _)| *found == number).map(|(_, run)| run)?;
        Some((run, &self.context))
    }

    /// Returns the run with this number.
    pub(super) fn find(&mut self, number: u64) -> Option<&mut Run> {
        self.running.iter_mut().find(|(found, _)| *found == number).map(|(_, run)| run)
    }

    /// Handles a poll event.
    pub(super) fn handle(&mut self, watched: EventSource) -> Vec<LauncherEvent> {
        let event = match watched {
            EventSource::Report(number) => self.read_report(number),
            EventSource::OutOfMemory(number) => self.handle_out_of_memory(number),
            EventSource::InitExited(number) => return self.reap_sandbox(number),
            EventSource::Notification(number) => self.poll_notifications(number),
            EventSource::ChildExited(number) => self.handle_child_exit(number),
            EventSource::CollectorExited(number) => self.finish_collecting(number),
            EventSource::GuestCopied => return self.start_waiting_sandboxes(),
            EventSource::Pool(source) => {
                let events = self.warm_pools.handle(&mut self.context, source);
                return self.handle_pool_events(events);
            }
        };
        event.into_iter().collect()
    }

    /// Returns whether a run must be killed now that its answer has been sent.
    pub(super) fn any_to_kill(&self) -> bool {
        self.running.iter().any(|(_, run)| matches!(run.state, RunState::KillDue))
    }

    /// Kills runs whose answer has been sent.
    pub(super) fn kill_answered(&mut self) {
        for (_, run) in self.running.iter_mut().filter(|(_, run)| matches!(run.state, RunState::KillDue)) {
            run.state.handle(RunEvent::Killed);
            if let Some((namespace_set, child)) = run.unreaped_child().filter(|_| run.has_one_thread()) {
                self.warm_pools.sample_memory(&self.context, namespace_set, child);
            }
            run.kill();
        }
    }

    /// Handles an out-of-memory event. The kernel sends it before it kills, and sends it to every cgroup if
    /// all of them together ran out of memory. So a run that has lost no process is checked again for a
    /// while.
    fn handle_out_of_memory(&mut self, number: u64) -> Option<LauncherEvent> {
        let run = self.find(number)?;
        run.group()?.drain_oom_event();
        run.oom_check = Some((Instant::now() + OOM_CHECK_INTERVAL, MAX_OOM_CHECKS));
        run.end_if_out_of_memory(number)
    }

    /// Handles seccomp notifications: a denied system call, or the announced exit of a warm child. The
    /// announcement ends the run, however long the kernel takes to tear down its memory.
    fn poll_notifications(&mut self, number: u64) -> Option<LauncherEvent> {
        let run = self.running.iter_mut().find(|(found, _)| *found == number).map(|(_, run)| run)?;
        let context = &self.context;
        let status = run.poll_notifications(context, &mut self.notify_budget)?;
        let seen = run.usage_where_uncounted(context);
        run.finish_child(number, status, seen)
    }

    /// Handles the exit of a warm child, whether or not it was announced.
    fn handle_child_exit(&mut self, number: u64) -> Option<LauncherEvent> {
        let (run, context) = self.find_with_context(number)?;
        let seen = run.usage_where_uncounted(context);
        let child = run.child.as_mut()?;
        let status = child.reap();
        if !run.state.is_running() {
            return None;
        }
        if let Some(failure) = child.failure() {
            run.kill();
            return Some(run.failed(number, failure));
        }
        run.finish_child(number, status, seen)
    }

    /// Reads the report of PID 1.
    fn read_report(&mut self, number: u64) -> Option<LauncherEvent> {
        let (run, context) = self.find_with_context(number)?;
        if run.state.is_answered() {
            return None;
        }
        let mut buffer = [0; rustix::pipe::PIPE_BUF];
        let read = run.report.as_ref().map_or(Ok(0), |report| rustix::io::read(report, &mut buffer[..]));
        match read {
            // Either PID 1 exited without a report, which is handled when its pidfd becomes readable, or it
            // became the guest.
            Ok(0) => {
                run.report = None;
                run.report_closed(context);
                None
            }
            Ok(read) => Some(match postcard::from_bytes(&buffer[..read]) {
                Ok(SetupReport::Ended { status, cpu, peak_memory_bytes, disk_full }) => {
                    let ending = run.ending_for_status(status, disk_full);
                    run.disk_full = disk_full;
                    run.ended(number, ending, Usage { cpu, peak_memory_bytes, peak_processes: None })
                }
                Ok(SetupReport::Failed(failure)) => {
                    run.kill();
                    run.failed(number, failure)
                }
                Ok(SetupReport::Ready) | Err(_) => {
                    run.failed(number, StepFailed::new(Step::Init, "", Errno::BADMSG))
                }
            }),
            Err(_) => None,
        }
    }

    /// Reaps a run whose PID 1, and with it every process of the jail, has exited.
    pub(super) fn reap(&mut self, number: u64) -> Option<LauncherEvent> {
        let last_report = self.read_report(number);
        let at = self.running.iter().position(|(found, _)| *found == number)?;
        let run = &mut self.running[at].1;
        if let Some(child) = &mut run.child {
            child.reap();
        }
        let status = sys::wait_pidfd(run.pidfd.as_fd()).unwrap_or(libc::SIGKILL);
        if run.start_collecting(self.warm_pools.collector_filter()) {
            return None;
        }
        let mut run = self.remove_run(at);
        let event = last_report.or_else(|| run.finish(number, status));
        self.recycle(run.recyclable);
        event
    }

    /// Finishes a run whose artifacts have been collected.
    fn finish_collecting(&mut self, number: u64) -> Option<LauncherEvent> {
        let at = self.running.iter().position(|(found, _)| *found == number)?;
        let mut run = self.remove_run(at);
        let event = run.finish_collecting(number);
        self.recycle(run.recyclable);
        event
    }

    /// Kills a run, or cancels it if it has not started.
    pub(super) fn kill(&mut self, number: u64) -> Option<LauncherEvent> {
        if let Some(pending) = self.warm_pools.cancel(number) {
            return Some(ended_before_start(&pending, JailEnding::Killed));
        }
        let waiting = self.guest_sealer.iter_mut().flat_map(|sealer| &mut sealer.pending);
        if let Some(at) = waiting.map(|pending| pending.run).position(|run| run == number) {
            let pending = self.guest_sealer.as_mut().map(|sealer| sealer.pending.swap_remove(at));
            return pending.map(|pending| ended_before_start(&pending, JailEnding::Killed));
        }
        let run = self.find(number)?;
        run.kill();
        if run.is_sandbox() {
            // Closing a sandbox waits until nothing of it is left: the event is sent once PID 1 is reaped.
            run.state.handle(RunEvent::CloseRequested);
            return None;
        }
        (!run.state.is_answered()).then(|| run.ended(number, JailEnding::Killed, Usage::default()))
    }

    /// Handles all deadlines that have passed.
    pub(super) fn handle_deadlines(&mut self, now: Instant) -> Vec<LauncherEvent> {
        let events = self.warm_pools.handle_deadlines(&mut self.context, now);
        let mut events = self.handle_pool_events(events);
        while let Some(pending) = self.warm_pools.take_expired(now) {
            events.push(ended_before_start(&pending, JailEnding::TimedOut));
        }
        let late = self
            .running
            .iter_mut()
            .filter(|(_, run)| !run.state.is_answered() && run.deadline.is_some_and(|at| at <= now));
        events.extend(late.map(|(number, run)| {
            run.kill();
            run.ended(*number, JailEnding::TimedOut, Usage::default())
        }));
        let in_doubt = self.running.iter_mut().filter(|(_, run)| run.is_oom_check_due(now));
        events.extend(in_doubt.filter_map(|(number, run)| {
            run.schedule_oom_check(now + OOM_CHECK_INTERVAL);
            run.end_if_out_of_memory(*number)
        }));
        events
    }

    /// Returns the time until the next deadline; `None` if there is none.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let deadline = self
            .running
            .iter()
            .filter(|(_, run)| !run.state.is_answered())
            .filter_map(|(_, run)| run.deadline);
        let now = Instant::now();
        let turns =
            self.running.iter().filter_map(|(_, run)| run.listener.next_allowed(&self.notify_budget, now));
        let pausing = self.running.iter().filter_map(|(_, run)| run.pausing_due(now));
        let doubts = self.running.iter().filter_map(|(_, run)| run.oom_check).map(|(at, _)| at);
        let own = self
            .warm_pools
            .next_deadline()
            .into_iter()
            .chain(self.next_share_check())
            .chain(self.context.groups.next_sweep());
        let deadline = deadline.chain(turns).chain(pausing).chain(doubts).chain(own).min();
        let deadline = deadline.map(|at| at.saturating_duration_since(now));
        match (deadline, self.is_clean()) {
            (deadline, true) => deadline,
            (None, false) => Some(SWEEP_INTERVAL),
            (Some(deadline), false) => Some(deadline.min(SWEEP_INTERVAL)),
        }
    }

    /// Returns how long no event may occur before idle work is done. The setup of spare jails must not
    /// compete with a run that has just started, but warm children are for requests that arrive every few
    /// milliseconds.
    pub(super) fn idle_delay(&self) -> Duration {
        if self.warm_pools.has_idle_work() { WARM_IDLE_DELAY } else { SPARE_IDLE_DELAY }
    }

    /// Returns whether there is idle work to do now. Preparing jails uses one processor and interrupts the
    /// others. So it is not done while something runs, unless none is left. Warm jails are never prepared
    /// while there are more runs than processors, because that would slow every run down, nor while a request
    /// waits for a child, because the builder that inspects the child does one thing after the other.
    pub(super) fn has_idle_work(&self) -> bool {
        let runs =
            self.running.iter().filter(|(_, run)| !run.state.is_answered() && !run.is_sandbox()).count();
        let waiting = self.warm_pools.waiting_requests();
        let is_idle = runs + waiting == 0;
        (self.spare_jails.needs_refill() && (is_idle || self.spare_jails.is_empty()))
            || (self.warm_pools.has_idle_work()
                && waiting == 0
                && (is_idle || (runs <= self.processors && self.warm_pools.has_empty_bucket())))
    }

    /// Does one piece of idle work: prepares a warm child or sets up a spare jail.
    pub(super) fn do_idle_work(&mut self) -> Vec<LauncherEvent> {
        if self.warm_pools.has_idle_work() {
            let events = self.warm_pools.do_idle_work(&mut self.context);
            return self.handle_pool_events(events);
        }
        self.spare_jails.refill(&mut self.context, &self.filters);
        Vec::new()
    }

    /// Reaps killed processes, and removes cgroups that were still busy when their run ended.
    pub(super) fn sweep(&mut self) {
        if self.reaper.has_warm_jails() || self.warm_pools.has_unreaped() {
            self.reap_unknown_zombies();
        }
        let free = self.reaper.sweep(&mut self.context);
        self.release_ids(free);
        self.warm_pools.release_zygotes(&self.context);
        self.context.groups.sweep();
    }

    /// Returns whether nothing is left to reap or to remove.
    fn is_clean(&self) -> bool {
        self.reaper.is_empty() && !self.warm_pools.has_unreaped()
    }

    /// Reaps zombies that belong to no known object. A zygote may have had children that it did not report.
    /// They died with their pid namespace, and the launcher must reap them.
    fn reap_unknown_zombies(&self) {
        for _ in 0..MAX_UNKNOWN_ZOMBIES {
            let Some(pid) = sys::peek_zombie() else { return };
            let known = self.warm_pools.owns_pid(pid as u32)
                || self.spare_jails.owns_pid(pid)
                || self.guest_sealer.as_ref().is_some_and(|sealer| sealer.pid == pid)
                || self.reaper.owns_pid(pid)
                || self.running.iter().any(|(_, run)| run.owns_pid(pid));
            if known {
                return;
            }
            // It is a zombie, so this does not block.
            let _reaped = sys::wait_child(pid);
        }
    }

    /// Kills everything, and waits up to a second until all of it is gone.
    pub(super) fn kill_all(mut self) {
        for (_, run) in &mut self.running {
            run.kill();
        }
        for (_, mut run) in std::mem::take(&mut self.running) {
            if let Some(child) = &mut run.child {
                child.reap();
            }
            let _reaped = sys::wait_pidfd(run.pidfd.as_fd());
            let _collected = run.finish_collecting(0);
            self.recycle(run.recyclable);
        }
        if let Some(sealer) = self.guest_sealer.take() {
            let _ended = sys::kill_and_reap(sealer.copier.as_fd());
        }
        let events = self.warm_pools.kill_all(&self.context);
        let unfinished = self.handle_pool_events(events);
        debug_assert!(unfinished.is_empty(), "no request is left waiting");
        for recyclable in self.spare_jails.kill_all() {
            self.recycle(recyclable);
        }
        self.context.groups.clear_reusable();
        let deadline = Instant::now() + Duration::from_secs(1);
        while !self.is_clean() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
            self.sweep();
            let free = self.reaper.remove_busy_cgroups();
            self.release_ids(free);
        }
    }
}

/// Returns the event for a request that ended before anything ran.
fn ended_before_start(pending: &PendingRun, ending: JailEnding) -> LauncherEvent {
    LauncherEvent::Ended {
        run: pending.run,
        ending,
        usage: Usage::default(),
        duration: pending.started.elapsed(),
        layers: Vec::new(),
        warmth: Warmth::Fork,
        denials: Denials::default(),
    }
}
