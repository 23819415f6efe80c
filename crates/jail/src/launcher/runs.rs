//! All runs of a launcher, and the resources still to be reaped or removed after them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::child::Pending;
use super::hearing::Hearing;
use super::home::Home;
use super::memory_share::MemoryShares;
use super::nursery::{Crib, News, Nursery, Served};
use super::run::{Collecting, Run};
use super::sealing::Sealing;
use super::spares::Spares;
use super::start::{self, Discarded, Filters, Lodging, Remains, Waiting, Wanted};
use crate::cgroup::Group;
use crate::inside::Told;
use crate::spec::{Ending, Jail, Kept, Network, PoolState, RootTree, Settings, Usage, Warmth};
use crate::step::{Step, StepFailed};
use crate::sys;
use crate::template::Templates;
use crate::wire::Notice;

/// How long the launcher must be idle before it sets up spare jails.
const QUIET: Duration = Duration::from_millis(3);
/// How long the launcher must be idle before it prepares warm children.
const BREATH: Duration = Duration::from_micros(300);
/// Maximum busy cgroups whose removal is retried at a time.
const MAX_REMOVED: usize = 32;
/// How often the removal of busy cgroups is retried.
const SWEEP: Duration = Duration::from_millis(20);
/// Maximum unknown zombies reaped in one sweep.
const MOST_STRAYS: usize = 256;

/// After an out-of-memory event that killed no process, the run is checked again after this time, this many
/// times.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const MOST_LOOKS: u32 = 10;

/// The source of a poll event.
#[derive(Debug, Clone, Copy)]
pub(super) enum Watched {
    /// PID 1 of a run has written to its report pipe, or closed it.
    Report(u64),
    /// The cgroup of a run ran out of memory.
    Memory(u64),
    /// PID 1 of a run has exited.
    Gone(u64),
    /// A seccomp listener of a run has a notification.
    Told(u64),
    /// The warm child of a run has exited.
    Ended(u64),
    /// The artifact collector of a run has exited.
    Collected(u64),
    /// The process that copies the guest binary has exited.
    Sealed,
    /// A descriptor of the warm pools.
    Warm(Crib),
}

/// All runs, and everything the launcher keeps from one run to the next.
pub(super) struct Runs {
    pub(super) home: Home,
    spares: Spares,
    templates: Templates,
    filters: Filters,
    pub(super) running: Vec<(u64, Run)>,
    /// Cgroups that were still busy, each with the ids to release once it is removed.
    leftover: Vec<(Group, Lodging)>,
    /// When their removal was last tried.
    swept: Instant,
    /// Spare jails that were killed and must be reaped.
    discarded: Vec<Discarded>,
    nursery: Nursery,
    processors: usize,
    pub(super) shares: MemoryShares,
    /// How many denied system calls of sandboxes may still be handled.
    pub(super) hearing: Hearing,
    /// The copy of the guest binary, while it is in progress.
    pub(super) sealing: Option<Sealing>,
}

impl Runs {
    pub(super) fn new(home: Home) -> Self {
        Self {
            home,
            spares: Spares::default(),
            templates: Templates::default(),
            filters: Filters::new(),
            running: Vec::new(),
            leftover: Vec::new(),
            swept: Instant::now(),
            discarded: Vec::new(),
            nursery: Nursery::new(),
            hearing: Hearing::new(Instant::now()),
            sealing: None,
            shares: MemoryShares::new(Instant::now()),
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        }
    }

    /// Applies new settings for what to keep warm.
    pub(super) fn keep(&mut self, settings: Settings) {
        if let Some(memory_bytes) = settings.memory_for_all {
            self.home.groups.limit_all(memory_bytes);
        }
        self.nursery.keep(settings);
    }

    /// Stores a root tree under its number.
    pub(super) fn learn_root(&mut self, number: u64, tree: RootTree) {
        self.templates.learn(number, tree);
    }

    /// Returns the state of every warm pool.
    pub(super) fn pools(&self) -> Vec<PoolState> {
        self.nursery.pools()
    }

    /// Starts a run, from a warm pool if possible.
    pub(super) fn start(&mut self, run: u64, jail: Box<Jail>, fds: Vec<OwnedFd>) -> Result<(), StepFailed> {
        let started = Instant::now();
        if jail.living {
            return self.start_living(Pending { run, jail, fds, started });
        }
        let root = self.templates.place(jail.root)?;
        let pending = Pending { run, jail, fds, started };
        match self.nursery.serve(&mut self.home, &root, pending) {
            Served::Started(warm) => self.enroll(run, *warm),
            Served::Expecting => {}
            Served::Cold(pending) => return self.start_cold(&pending),
        }
        Ok(())
    }

    /// Starts a run in a jail of its own: a spare one, or a new one.
    pub(super) fn start_cold(&mut self, pending: &Pending) -> Result<(), StepFailed> {
        let jail = &*pending.jail;
        let root = self.templates.place(jail.root)?;
        let binds = start::wanted_binds(jail);
        let (gate, fds) = match (jail.network, pending.fds.split_last()) {
            (Network::Gated, Some((gate, fds))) => (Some(gate), fds),
            _ => (None, pending.fds.as_slice()),
        };
        let waiting = if jail.network == Network::Own && binds.is_empty() && jail.commands.len() == 1 {
            let (taken, useless) = self.spares.take(jail, &root);
            self.discarded.extend(useless.into_iter().map(Waiting::discard));
            taken
        } else {
            None
        };
        let waiting = match waiting {
            Some(waiting) => waiting,
            None => {
                let commands = jail.commands.len();
                let (network, living) = (jail.network, jail.living);
                let wanted = Wanted { root: &root, network, binds, commands, living, gate };
                start::prepare(&mut self.home, &self.filters, &wanted)?
            }
        };
        match waiting.order(&self.home, jail, fds, pending.started) {
            Ok(started) => {
                self.enroll(pending.run, started);
                Ok(())
            }
            Err(failed) => {
                let (failed, waiting) = *failed;
                self.discarded.push(waiting.discard());
                Err(failed)
            }
        }
    }

    /// Acts on the events of the warm pools.
    fn take_news(&mut self) -> Vec<Notice> {
        let mut notices = Vec::new();
        for news in std::mem::take(&mut self.nursery.news) {
            match news {
                News::Started(run, warm) => self.enroll(run, *warm),
                News::FallBack(pending) => {
                    let failed = self.start_cold(&pending).err();
                    notices.extend(failed.map(|failure| Notice::Failed { run: pending.run, failure }));
                }
                News::Mismatch(mismatch) => notices.push(Notice::Mismatch(mismatch)),
                News::Distrusted(zygote) => notices.extend(self.fail_children_of(zygote)),
            }
        }
        notices
    }

    /// Kills the runs that came of an untrusted zygote, and reports each as failed rather than ended.
    fn fail_children_of(&mut self, zygote: u64) -> Vec<Notice> {
        let theirs = self.running.iter_mut().filter(|(_, run)| run.zygote() == Some(zygote) && !run.answered);
        let failure = || StepFailed::new(Step::Init, "(its warm interpreter was not confined)", Errno::PERM);
        theirs
            .map(|(number, run)| {
                run.kill();
                run.failed(*number, failure())
            })
            .collect()
    }

    /// Recycles the resources of a jail for later jails.
    fn tidy(&mut self, Remains { group, lodging }: Remains) {
        match group.and_then(|group| self.home.groups.take_back(group).err()) {
            None => self.vacate(lodging),
            // The ids stay leased while a process may still run under them.
            Some(group) => self.leftover.push((group, lodging)),
        }
    }

    /// Releases an id lease, or returns a namespace set to its zygote.
    fn vacate(&mut self, lodging: Lodging) {
        match lodging {
            Lodging::Ids(taken) => self.home.ids.give_back(taken),
            Lodging::Plot(plot) => self.nursery.take_back(&self.home, *plot),
        }
    }

    /// Returns all descriptors to poll.
    pub(super) fn watched(&self) -> Vec<(BorrowedFd<'_>, Watched)> {
        let mut watched = Vec::new();
        let now = Instant::now();
        for (number, run) in &self.running {
            if let Collecting::Now(_, collector) = &run.collecting {
                watched.push((collector.as_fd(), Watched::Collected(*number)));
                continue;
            }
            let quiet = run.answered || matches!(run.collecting, Collecting::Due(_));
            if let Some(report) = run.report.as_ref().filter(|_| !quiet) {
                watched.push((report.as_fd(), Watched::Report(*number)));
            }
            let ears = run.ear.watched(&self.hearing, now).filter(|_| !quiet);
            watched.extend(ears.map(|fd| (fd, Watched::Told(*number))));
            if let Some(child) = &run.child {
                let ended = (!child.is_reaped()).then_some((child.pidfd.as_fd(), Watched::Ended(*number)));
                watched.extend(ended);
            }
            let memory_ends_it = !run.answered && !run.is_living();
            if let Some(event) = run.group().and_then(Group::oom_event).filter(|_| memory_ends_it) {
                watched.push((event, Watched::Memory(*number)));
            }
            watched.push((run.pidfd.as_fd(), Watched::Gone(*number)));
        }
        watched.extend(self.sealing.iter().map(|sealing| (sealing.copier.as_fd(), Watched::Sealed)));
        watched.extend(self.nursery.watched().map(|(fd, crib)| (fd, Watched::Warm(crib))));
        watched
    }

    fn find_at_home(&mut self, number: u64) -> Option<(&mut Run, &Home)> {
        let run = self.running.iter_mut().find(|(found, _)| *found == number).map(|(_, run)| run)?;
        Some((run, &self.home))
    }

    /// Returns the run with this number.
    pub(super) fn find(&mut self, number: u64) -> Option<&mut Run> {
        self.running.iter_mut().find(|(found, _)| *found == number).map(|(_, run)| run)
    }

    /// Handles a poll event.
    pub(super) fn handle(&mut self, watched: Watched) -> Vec<Notice> {
        let notice = match watched {
            Watched::Report(number) => self.read_report(number),
            Watched::Memory(number) => self.out_of_memory(number),
            Watched::Gone(number) => return self.bury_answering(number),
            Watched::Told(number) => self.hear(number),
            Watched::Ended(number) => self.child_ended(number),
            Watched::Collected(number) => self.collected(number),
            Watched::Sealed => return self.sealed(),
            Watched::Warm(crib) => {
                self.nursery.handle(&mut self.home, crib);
                return self.take_news();
            }
        };
        notice.into_iter().collect()
    }

    /// Returns whether a run must be killed now that its answer has been sent.
    pub(super) fn any_doomed(&self) -> bool {
        self.running.iter().any(|(_, run)| run.doomed)
    }

    /// Kills runs whose answer has been sent.
    pub(super) fn end_doomed(&mut self) {
        for (_, run) in self.running.iter_mut().filter(|(_, run)| run.doomed) {
            run.doomed = false;
            if let Some((plot, child)) = run.spent_child().filter(|_| run.is_alone()) {
                self.nursery.look_at(&self.home, plot, child);
            }
            run.kill();
        }
    }

    /// Handles an out-of-memory event. The kernel sends it before it kills, and sends it to every cgroup if
    /// all of them together ran out of memory. So a run that has lost no process is checked again for a
    /// while.
    fn out_of_memory(&mut self, number: u64) -> Option<Notice> {
        let run = self.find(number)?;
        run.group()?.drain_oom_event();
        run.memory_doubt = Some((Instant::now() + LOOK_AGAIN, MOST_LOOKS));
        run.end_if_out_of_memory(number)
    }

    /// Handles seccomp notifications: a denied system call, or the announced exit of a warm child. The
    /// announcement ends the run, however long the kernel takes to tear down its memory.
    fn hear(&mut self, number: u64) -> Option<Notice> {
        let run = self.running.iter_mut().find(|(found, _)| *found == number).map(|(_, run)| run)?;
        let home = &self.home;
        let status = run.hear(home, &mut self.hearing)?;
        let seen = run.usage_where_uncounted(home);
        run.conclude(number, status, seen)
    }

    /// Handles the exit of a warm child, whether or not it was announced.
    fn child_ended(&mut self, number: u64) -> Option<Notice> {
        let (run, home) = self.find_at_home(number)?;
        let seen = run.usage_where_uncounted(home);
        let child = run.child.as_mut()?;
        let status = child.reap();
        if run.answered || matches!(run.collecting, Collecting::Due(_)) {
            return None;
        }
        if let Some(failure) = child.failure() {
            run.kill();
            return Some(run.failed(number, failure));
        }
        run.conclude(number, status, seen)
    }

    /// Reads the report of PID 1.
    fn read_report(&mut self, number: u64) -> Option<Notice> {
        let (run, home) = self.find_at_home(number)?;
        if run.answered {
            return None;
        }
        let mut buffer = [0; rustix::pipe::PIPE_BUF];
        let read = run.report.as_ref().map_or(Ok(0), |report| rustix::io::read(report, &mut buffer[..]));
        match read {
            // Either PID 1 exited without a report, which is handled when its pidfd becomes readable, or it
            // became the guest.
            Ok(0) => {
                run.report = None;
                run.settle(home);
                None
            }
            Ok(read) => Some(match postcard::from_bytes(&buffer[..read]) {
                Ok(Told::Ended { status, cpu, peak_memory_bytes, disk_full }) => {
                    let ending = run.judge(status, disk_full);
                    run.disk_full = disk_full;
                    run.ended(number, ending, Usage { cpu, peak_memory_bytes, peak_processes: None })
                }
                Ok(Told::Failed(failure)) => {
                    run.kill();
                    run.failed(number, failure)
                }
                Ok(Told::Ready) | Err(_) => {
                    run.failed(number, StepFailed::new(Step::Init, "", Errno::BADMSG))
                }
            }),
            Err(_) => None,
        }
    }

    /// Reaps a run whose PID 1, and with it every process of the jail, has exited.
    pub(super) fn bury(&mut self, number: u64) -> Option<Notice> {
        let last_words = self.read_report(number);
        let at = self.running.iter().position(|(found, _)| *found == number)?;
        let run = &mut self.running[at].1;
        if let Some(child) = &mut run.child {
            child.reap();
        }
        let status = sys::wait_for(run.pidfd.as_fd()).unwrap_or(libc::SIGKILL);
        let mut ending = run.fate(status);
        if let (Collecting::Due(due), false) = (&run.collecting, run.answered) {
            ending = Some(run.collect(*due, self.nursery.collectors_filter())?);
        }
        let mut run = self.dismiss(at);
        let notice = last_words.or_else(|| {
            if run.answered {
                return None;
            }
            Some(if let Some(ending) = ending.filter(|_| run.is_living() || !run.out_of_memory()) {
                run.ended(number, ending, Usage::default())
            } else if run.out_of_memory() {
                run.ended(number, run.memory_ending(), Usage::default())
            } else {
                run.failed(number, StepFailed::new(Step::Init, "(it was killed)", Errno::CHILD))
            })
        });
        self.tidy(run.into_remains());
        notice
    }

    /// Finishes a run whose artifacts have been collected.
    fn collected(&mut self, number: u64) -> Option<Notice> {
        let at = self.running.iter().position(|(found, _)| *found == number)?;
        let mut run = self.dismiss(at);
        let notice = run.collected(number);
        self.tidy(run.into_remains());
        notice
    }

    /// Kills a run, or cancels it if it has not started.
    pub(super) fn kill(&mut self, number: u64) -> Option<Notice> {
        if let Some(pending) = self.nursery.cancel(number) {
            return Some(never_started(&pending, Ending::Killed));
        }
        let waiting = self.sealing.iter_mut().flat_map(|sealing| &mut sealing.pending);
        if let Some(at) = waiting.map(|pending| pending.run).position(|run| run == number) {
            let pending = self.sealing.as_mut().map(|sealing| sealing.pending.swap_remove(at));
            return pending.map(|pending| never_started(&pending, Ending::Killed));
        }
        let run = self.find(number)?;
        if let Some((life, _)) = run.life() {
            // Closing a sandbox waits until nothing of it is left: the event is sent once PID 1 is reaped.
            life.doom.get_or_insert(Ending::Killed);
            run.kill();
            return None;
        }
        run.kill();
        (!run.answered).then(|| run.ended(number, Ending::Killed, Usage::default()))
    }

    /// Handles all deadlines that have passed.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Notice> {
        self.nursery.tend(&mut self.home, now);
        let mut notices = self.take_news();
        while let Some(pending) = self.nursery.expired(now) {
            notices.push(never_started(&pending, Ending::TimedOut));
        }
        let late = self
            .running
            .iter_mut()
            .filter(|(_, run)| !run.answered && run.deadline.is_some_and(|at| at <= now));
        notices.extend(late.map(|(number, run)| {
            run.kill();
            run.ended(*number, Ending::TimedOut, Usage::default())
        }));
        let in_doubt = self.running.iter_mut().filter(|(_, run)| run.is_doubt_due(now));
        notices.extend(in_doubt.filter_map(|(number, run)| {
            run.doubt_on(now + LOOK_AGAIN);
            run.end_if_out_of_memory(*number)
        }));
        notices
    }

    /// Returns the time until the next deadline; `None` if there is none.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let deadline =
            self.running.iter().filter(|(_, run)| !run.answered).filter_map(|(_, run)| run.deadline);
        let now = Instant::now();
        let turns = self.running.iter().filter_map(|(_, run)| run.ear.next_turn(&self.hearing, now));
        let pausing = self.running.iter().filter_map(|(_, run)| run.pausing_due(now));
        let doubts = self.running.iter().filter_map(|(_, run)| run.memory_doubt).map(|(at, _)| at);
        let own = self
            .nursery
            .next_deadline()
            .into_iter()
            .chain(self.shares_due())
            .chain(self.home.groups.next_sweep());
        let deadline = deadline.chain(turns).chain(pausing).chain(doubts).chain(own).min();
        let deadline = deadline.map(|at| at.saturating_duration_since(now));
        match (deadline, self.is_tidy()) {
            (deadline, true) => deadline,
            (None, false) => Some(SWEEP),
            (Some(deadline), false) => Some(deadline.min(SWEEP)),
        }
    }

    /// Returns how long no event may occur before idle work is done. The setup of spare jails must not
    /// compete with a run that has just started, but warm children are for requests that arrive every few
    /// milliseconds.
    pub(super) fn quiet(&self) -> Duration {
        if self.nursery.has_idle_work() { BREATH } else { QUIET }
    }

    /// Returns whether there is idle work to do now. Preparing jails uses one processor and interrupts the
    /// others. So it is not done while something runs, unless none is left. Warm jails are never prepared
    /// while there are more runs than processors, because that would slow every run down.
    pub(super) fn has_idle_work(&self) -> bool {
        let runs = self.running.iter().filter(|(_, run)| !run.answered && !run.is_living()).count();
        let busy = runs + self.nursery.awaited();
        (self.spares.wanting() && (busy == 0 || self.spares.none_left()))
            || (self.nursery.has_idle_work()
                && (busy == 0 || (busy <= self.processors && self.nursery.none_waits())))
    }

    /// Does one piece of idle work: prepares a warm child or sets up a spare jail.
    pub(super) fn do_idle_work(&mut self) {
        if self.nursery.has_idle_work() {
            self.nursery.do_idle_work(&mut self.home);
        } else {
            self.spares.refill(&mut self.home, &self.filters);
        }
    }

    /// Reaps killed processes, and removes cgroups that were still busy when their run ended.
    pub(super) fn sweep(&mut self) {
        if self.nursery.is_ending() {
            self.reap_strays();
        }
        for mut dying in std::mem::take(&mut self.nursery.dying) {
            match dying.bury() {
                Some(remains) => self.tidy(remains),
                None => self.nursery.dying.push(dying),
            }
        }
        for discarded in std::mem::take(&mut self.discarded) {
            if discarded.is_gone() {
                self.tidy(discarded.wait());
            } else {
                self.discarded.push(discarded);
            }
        }
        self.nursery.sweep(&self.home);
        self.home.groups.sweep();
        if self.swept.elapsed() >= SWEEP {
            self.swept = Instant::now();
            self.remove_leftover();
        }
    }

    /// Returns whether nothing is left to reap or to remove.
    fn is_tidy(&self) -> bool {
        self.leftover.is_empty() && self.discarded.is_empty() && !self.nursery.is_ending()
    }

    /// Retries the removal of busy cgroups, some at a time. Those that are not tried now come first next
    /// time.
    fn remove_leftover(&mut self) {
        let tried = self.leftover.len().min(MAX_REMOVED);
        let leftover: Vec<_> = self.leftover.drain(..tried).collect();
        for (group, lodging) in leftover {
            match group.kill_and_remove() {
                Ok(()) => self.vacate(lodging),
                Err(group) => self.leftover.push((group, lodging)),
            }
        }
    }

    /// Reaps zombies that belong to no known object. A zygote may have had children that it did not report.
    /// They died with their pid namespace, and the launcher must reap them.
    fn reap_strays(&self) {
        for _ in 0..MOST_STRAYS {
            let Some(pid) = sys::dead_child() else { return };
            let known = self.nursery.knows(pid as u32)
                || self.spares.knows(pid)
                || self.sealing.as_ref().is_some_and(|sealing| sealing.pid == pid)
                || self.discarded.iter().any(|discarded| discarded.knows(pid))
                || self.nursery.dying.iter().any(|dying| dying.knows(pid))
                || self.running.iter().any(|(_, run)| run.knows(pid));
            if known {
                return;
            }
            // It is a zombie, so this does not block.
            let _reaped = sys::wait(pid);
        }
    }

    /// Kills everything, and waits up to a second until all of it is gone.
    pub(super) fn end_all(mut self) {
        for (_, run) in &mut self.running {
            run.kill();
        }
        for (_, mut run) in std::mem::take(&mut self.running) {
            if let Some(child) = &mut run.child {
                child.reap();
            }
            let _reaped = sys::wait_for(run.pidfd.as_fd());
            let _collected = run.collected(0);
            self.tidy(run.into_remains());
        }
        if let Some(sealing) = self.sealing.take() {
            let _ended = sys::put_an_end_to(sealing.copier.as_fd());
        }
        self.nursery.end_all(&self.home);
        let unfinished = self.take_news();
        debug_assert!(unfinished.is_empty(), "no request is left waiting");
        for remains in self.spares.end_all() {
            self.tidy(remains);
        }
        self.home.groups.forget_free();
        let patience = Instant::now() + Duration::from_secs(1);
        while !self.is_tidy() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(2));
            self.sweep();
            self.remove_leftover();
        }
    }
}

/// Returns the event for a request that ended before anything ran.
fn never_started(pending: &Pending, ending: Ending) -> Notice {
    Notice::Ended {
        run: pending.run,
        ending,
        usage: Usage::default(),
        duration: pending.started.elapsed(),
        layers: Vec::new(),
        warmth: Warmth::Fork,
        kept: Kept::default(),
    }
}
