//! The runs that a launcher has going, and what is left to tidy up.

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

const QUIET: Duration = Duration::from_millis(3);
const BREATH: Duration = Duration::from_micros(300);
/// How many groups that could not be removed yet are tried again at a time.
const MAX_REMOVED: usize = 32;
/// How often groups that could not be removed yet are tried again.
const SWEEP: Duration = Duration::from_millis(20);
/// How many processes that nobody knows are waited for in one sweep.
const MOST_STRAYS: usize = 256;

/// When it is looked at again whether a run that ran out of memory lost a process, and how often.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const MOST_LOOKS: u32 = 10;

/// What a descriptor of a run stands for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Watched {
    Report(u64),
    Memory(u64),
    Gone(u64),
    /// The filter of a program has something to tell.
    Told(u64),
    /// A zygote's child has ended.
    Ended(u64),
    /// The artifacts of one have been collected.
    Collected(u64),
    /// The binary that guests become has been copied.
    Sealed,
    /// Something that is kept warm.
    Warm(Crib),
}

/// All runs, and everything the launcher keeps between them.
pub(super) struct Runs {
    pub(super) home: Home,
    spares: Spares,
    templates: Templates,
    filters: Filters,
    pub(super) running: Vec<(u64, Run)>,
    /// Groups that were not empty yet, and what to give back when they are.
    leftover: Vec<(Group, Lodging)>,
    /// When those were tried last.
    swept: Instant,
    /// Shells that were killed.
    discarded: Vec<Discarded>,
    nursery: Nursery,
    processors: usize,
    pub(super) shares: MemoryShares,
    /// How many refused calls of living jails are still heard.
    pub(super) hearing: Hearing,
    /// The copying of the binary that guests become, while it lasts.
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

    /// What to keep ready from now on.
    pub(super) fn keep(&mut self, settings: Settings) {
        if let Some(memory_bytes) = settings.memory_for_all {
            self.home.groups.limit_all(memory_bytes);
        }
        self.nursery.keep(settings);
    }

    /// Remembers a root tree.
    pub(super) fn learn_root(&mut self, number: u64, tree: RootTree) {
        self.templates.learn(number, tree);
    }

    /// What is kept ready.
    pub(super) fn pools(&self) -> Vec<PoolState> {
        self.nursery.pools()
    }

    /// Starts a run, warm where something is.
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

    /// Deals with what became of requests that waited for a zygote's child.
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

    /// Ends the runs that came of a zygote which cannot be believed, and says that this was no ending of theirs.
    fn fail_children_of(&mut self, zygote: u64) -> Vec<Notice> {
        let theirs = self.running.iter_mut().filter(|(_, run)| run.zygote() == Some(zygote) && !run.answered);
        let failure = || StepFailed::new(Step::Init, "(its interpreter was not to be trusted)", Errno::PERM);
        theirs
            .map(|(number, run)| {
                run.kill();
                run.failed(*number, failure())
            })
            .collect()
    }

    /// Puts what a jail left behind to where the next one finds it.
    fn tidy(&mut self, Remains { group, lodging }: Remains) {
        match group.and_then(|group| self.home.groups.take_back(group).err()) {
            None => self.vacate(lodging),
            // Nobody may have its ids while somebody may still run under them.
            Some(group) => self.leftover.push((group, lodging)),
        }
    }

    fn vacate(&mut self, lodging: Lodging) {
        match lodging {
            Lodging::Ids(taken) => self.home.ids.give_back(taken),
            Lodging::Plot(plot) => self.nursery.take_back(&self.home, *plot),
        }
    }

    /// Everything to poll.
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

    pub(super) fn find(&mut self, number: u64) -> Option<&mut Run> {
        self.running.iter_mut().find(|(found, _)| *found == number).map(|(_, run)| run)
    }

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

    pub(super) fn any_doomed(&self) -> bool {
        self.running.iter().any(|(_, run)| run.doomed)
    }

    /// Ends runs whose answer has been given.
    pub(super) fn end_doomed(&mut self) {
        for (_, run) in self.running.iter_mut().filter(|(_, run)| run.doomed) {
            run.doomed = false;
            if let Some((plot, child)) = run.spent_child().filter(|_| run.is_alone()) {
                self.nursery.look_at(&self.home, plot, child);
            }
            run.kill();
        }
    }

    /// The kernel tells this before it kills, and tells every group where all of them together ran out of memory: so a
    /// run that lost no process is looked at again for a while.
    fn out_of_memory(&mut self, number: u64) -> Option<Notice> {
        let run = self.find(number)?;
        run.group()?.drain_oom_event();
        run.memory_doubt = Some((Instant::now() + LOOK_AGAIN, MOST_LOOKS));
        run.end_if_out_of_memory(number)
    }

    /// A program was refused something; or a zygote's child says that it is about to end: that is its ending, whatever the
    /// tearing down of its memory takes.
    fn hear(&mut self, number: u64) -> Option<Notice> {
        let run = self.running.iter_mut().find(|(found, _)| *found == number).map(|(_, run)| run)?;
        let home = &self.home;
        let status = run.hear(home, &mut self.hearing)?;
        let seen = run.usage_where_uncounted(home);
        run.conclude(number, status, seen)
    }

    /// A zygote's child has ended, said so before or not.
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

    fn read_report(&mut self, number: u64) -> Option<Notice> {
        let (run, home) = self.find_at_home(number)?;
        if run.answered {
            return None;
        }
        let mut buffer = [0; rustix::pipe::PIPE_BUF];
        let read = run.report.as_ref().map_or(Ok(0), |report| rustix::io::read(report, &mut buffer[..]));
        match read {
            // PID 1 is gone without a word; its pidfd says so too, and that is where it is dealt with. Or it is the guest.
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

    /// PID 1 has gone, and with it every process of the jail.
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

    /// What a child left is collected, and with that its run is over.
    fn collected(&mut self, number: u64) -> Option<Notice> {
        let at = self.running.iter().position(|(found, _)| *found == number)?;
        let mut run = self.dismiss(at);
        let notice = run.collected(number);
        self.tidy(run.into_remains());
        notice
    }

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
            // Whoever closes one waits until nothing is left: that is told when it is buried.
            life.doom.get_or_insert(Ending::Killed);
            run.kill();
            return None;
        }
        run.kill();
        (!run.answered).then(|| run.ended(number, Ending::Killed, Usage::default()))
    }

    /// Ends what is over its time.
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

    /// How long nothing has to be done by itself; `None` is for ever.
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

    /// How long nothing must happen before idle work is done. A run that has just been started is not to compete with the
    /// making of spares; but children are made for requests that come every few milliseconds.
    pub(super) fn quiet(&self) -> Duration {
        if self.nursery.has_idle_work() { BREATH } else { QUIET }
    }

    /// Making spares takes a processor and interrupts the others: not while something runs, unless none is left; and
    /// never while more runs than there are processors, because then everybody pays for it.
    pub(super) fn has_idle_work(&self) -> bool {
        let runs = self.running.iter().filter(|(_, run)| !run.answered && !run.is_living()).count();
        let busy = runs + self.nursery.awaited();
        (self.spares.wanting() && (busy == 0 || self.spares.none_left()))
            || (self.nursery.has_idle_work()
                && (busy == 0 || (busy <= self.processors && self.nursery.none_waits())))
    }

    pub(super) fn do_idle_work(&mut self) {
        if self.nursery.has_idle_work() {
            self.nursery.do_idle_work(&mut self.home);
        } else {
            self.spares.refill(&mut self.home, &self.filters);
        }
    }

    /// Waits for children that were killed, and removes groups that were still busy when their run was over.
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

    /// Whether nothing is left to wait for.
    fn is_tidy(&self) -> bool {
        self.leftover.is_empty() && self.discarded.is_empty() && !self.nursery.is_ending()
    }

    /// Tries again to remove groups that were busy, some at a time: those that are not tried now come first next time.
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

    /// A zygote that ended may have had children that it could not tell of, or did not. They are dead with their namespace,
    /// and somebody has to wait for them: they are those that nobody here knows.
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
            // It is dead; this does not wait.
            let _reaped = sys::wait(pid);
        }
    }

    /// Kills everything and waits until it is gone.
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
        debug_assert!(unfinished.is_empty(), "nothing waits for what is over");
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

/// A request that ended before anything could run.
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
