//! The runs that a launcher has going: what each is waiting for, how each ended, and what is left to tidy up.
//!
//! ```text
//! started ──report──▶ answered ──PID 1 is gone──▶ tidied
//!    └──deadline, out of memory, kill: answered, and PID 1 killed──┘
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions};

use super::home::Home;
use super::ids::Taken;
use super::spares::Spares;
use super::start::{self, Wanted};
use crate::cgroup::Group;
use crate::inside::Told;
use crate::seccomp::Filter;
use crate::spec::{Ending, Jail, Layer, Network, PoolState, Settings, Usage, Warmth};
use crate::step::{Step, StepFailed};
use crate::template::Templates;
use crate::wire::Notice;

/// How often groups that could not be removed yet are tried again.
const SWEEP: Duration = Duration::from_millis(20);

/// What a descriptor of a run stands for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Watched {
    Report(u64),
    Memory(u64),
    Gone(u64),
}

/// One run.
pub(super) struct Run {
    pidfd: OwnedFd,
    report: Option<OwnedFd>,
    group: Option<Group>,
    taken: Taken,
    layers: Vec<Layer>,
    started: Instant,
    deadline: Instant,
    answered: bool,
}

impl Run {
    pub(super) fn new(
        pidfd: OwnedFd,
        report: OwnedFd,
        group: Option<Group>,
        taken: Taken,
        layers: Vec<Layer>,
        started: Instant,
        timeout: Duration,
    ) -> Self {
        let deadline = started + timeout;
        Self { pidfd, report: Some(report), group, taken, layers, started, deadline, answered: false }
    }

    pub(super) fn kill(&self) {
        // Only a process that is gone already cannot be killed, and that is what is wanted.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    fn out_of_memory(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.oom_kills() > 0)
    }

    /// What ended the program, given what PID 1 saw.
    fn judge(&self, status: i32, disk_full: bool) -> Ending {
        let forks_refused = || self.group.as_ref().is_some_and(|group| group.forks_refused() > 0);
        if self.out_of_memory() {
            return Ending::Memory;
        }
        if libc::WIFSIGNALED(status) {
            return match libc::WTERMSIG(status) {
                libc::SIGXFSZ => Ending::Disk(None),
                signal => Ending::Signalled(signal),
            };
        }
        match libc::WEXITSTATUS(status) as u8 {
            0 => Ending::Exited(0),
            status if disk_full => Ending::Disk(Some(status)),
            status if forks_refused() => Ending::Processes(status),
            status => Ending::Exited(status),
        }
    }

    fn ended(&mut self, run: u64, ending: Ending, seen: Usage) -> Notice {
        self.answered = true;
        let group = self.group.as_ref().map(Group::usage).unwrap_or_default();
        let usage = Usage {
            cpu: group.cpu.unwrap_or(seen.cpu),
            peak_memory_bytes: group.peak_memory_bytes.unwrap_or(seen.peak_memory_bytes),
            // PID 1 is ours.
            peak_processes: group.peak_processes.map(|peak| peak.saturating_sub(1)),
        };
        let (duration, layers) = (self.started.elapsed(), self.layers.clone());
        Notice::Ended { run, ending, usage, duration, layers, warmth: Warmth::Cold }
    }

    fn failed(&mut self, run: u64, failure: StepFailed) -> Notice {
        self.answered = true;
        Notice::Failed { run, failure }
    }
}

/// All runs, and everything the launcher keeps between them.
pub(super) struct Runs {
    home: Home,
    spares: Spares,
    templates: Templates,
    filter: Filter,
    running: Vec<(u64, Run)>,
    leftover: Vec<Group>,
    settings: Settings,
}

impl Runs {
    pub(super) fn new(home: Home) -> Self {
        Self {
            home,
            spares: Spares::default(),
            templates: Templates::default(),
            filter: Filter::for_this_machine(),
            running: Vec::new(),
            leftover: Vec::new(),
            settings: Settings::default(),
        }
    }

    /// What to keep ready from now on.
    pub(super) fn keep(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// What is kept ready.
    pub(super) fn pools(&self) -> Vec<PoolState> {
        Vec::new()
    }

    pub(super) fn start(&mut self, run: u64, jail: &Jail, fds: &[OwnedFd]) -> Result<(), StepFailed> {
        let started = Instant::now();
        let root = self.templates.place(&jail.root)?;
        let binds = start::wanted_binds(jail);
        let waiting = if jail.network == Network::Own && binds.is_empty() && jail.commands.len() == 1 {
            let (taken, useless) = self.spares.take(jail, &root);
            useless.into_iter().for_each(|waiting| self.tidy(waiting.discard()));
            taken
        } else {
            None
        };
        let waiting = match waiting {
            Some(waiting) => waiting,
            None => {
                let seats = jail.commands.len();
                let wanted = Wanted { tree: &jail.root, root: &root, network: jail.network, binds, seats };
                start::prepare(&mut self.home, &self.filter, &wanted)?
            }
        };
        match waiting.order(&self.home, jail, fds, started) {
            Ok(started) => {
                self.running.push((run, started));
                Ok(())
            }
            Err(failed) => {
                let (failed, waiting) = *failed;
                self.tidy(waiting.discard());
                Err(failed)
            }
        }
    }

    fn tidy(&mut self, (group, taken): (Option<Group>, Taken)) {
        self.home.ids.give_back(taken);
        self.leftover.extend(group.and_then(|group| group.remove().err()));
    }

    /// Everything to poll.
    pub(super) fn watched(&self) -> Vec<(BorrowedFd<'_>, Watched)> {
        let mut watched = Vec::new();
        for (number, run) in &self.running {
            if let Some(report) = run.report.as_ref().filter(|_| !run.answered) {
                watched.push((report.as_fd(), Watched::Report(*number)));
            }
            if let Some(event) = run.group.as_ref().and_then(Group::oom_event).filter(|_| !run.answered) {
                watched.push((event, Watched::Memory(*number)));
            }
            watched.push((run.pidfd.as_fd(), Watched::Gone(*number)));
        }
        watched
    }

    fn find(&mut self, number: u64) -> Option<&mut Run> {
        self.running.iter_mut().find(|(found, _)| *found == number).map(|(_, run)| run)
    }

    pub(super) fn handle(&mut self, watched: Watched) -> Option<Notice> {
        match watched {
            Watched::Report(number) => self.read_report(number),
            Watched::Memory(number) => {
                let run = self.find(number)?;
                if run.answered || !run.out_of_memory() {
                    return None;
                }
                run.kill();
                Some(run.ended(number, Ending::Memory, Usage::default()))
            }
            Watched::Gone(number) => self.bury(number),
        }
    }

    fn read_report(&mut self, number: u64) -> Option<Notice> {
        let run = self.find(number)?;
        if run.answered {
            return None;
        }
        let mut buffer = [0; rustix::pipe::PIPE_BUF];
        let read = run.report.as_ref().map_or(Ok(0), |report| rustix::io::read(report, &mut buffer[..]));
        match read {
            // PID 1 is gone without a word; its pidfd says so too, and that is where it is dealt with.
            Ok(0) => {
                run.report = None;
                None
            }
            Ok(read) => Some(match postcard::from_bytes(&buffer[..read]) {
                Ok(Told::Ended { status, cpu, peak_memory_bytes, disk_full }) => {
                    let ending = run.judge(status, disk_full);
                    run.ended(number, ending, Usage { cpu, peak_memory_bytes, peak_processes: None })
                }
                Ok(Told::Failed(failure)) => {
                    run.kill();
                    run.failed(number, failure)
                }
                Err(_) => run.failed(number, StepFailed::new(Step::Init, "", Errno::BADMSG)),
            }),
            Err(_) => None,
        }
    }

    /// PID 1 has gone, and with it every process of the jail.
    fn bury(&mut self, number: u64) -> Option<Notice> {
        let last_words = self.read_report(number);
        let at = self.running.iter().position(|(found, _)| *found == number)?;
        let (_, mut run) = self.running.swap_remove(at);
        let options = WaitIdOptions::EXITED;
        let _reaped = rustix::process::waitid(WaitId::PidFd(run.pidfd.as_fd()), options);
        let notice = last_words.or_else(|| {
            if run.answered {
                return None;
            }
            Some(if run.out_of_memory() {
                run.ended(number, Ending::Memory, Usage::default())
            } else {
                run.failed(number, StepFailed::new(Step::Init, "(it was killed)", Errno::CHILD))
            })
        });
        self.tidy((run.group, run.taken));
        notice
    }

    pub(super) fn kill(&mut self, number: u64) -> Option<Notice> {
        let run = self.find(number)?;
        run.kill();
        (!run.answered).then(|| run.ended(number, Ending::Killed, Usage::default()))
    }

    /// Ends what is over its time.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Notice> {
        let late = self.running.iter_mut().filter(|(_, run)| !run.answered && run.deadline <= now);
        late.map(|(number, run)| {
            run.kill();
            run.ended(*number, Ending::TimedOut, Usage::default())
        })
        .collect()
    }

    /// How long nothing has to be done by itself; `None` is for ever.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let deadline =
            self.running.iter().filter(|(_, run)| !run.answered).map(|(_, run)| run.deadline).min();
        let deadline = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        match (deadline, self.leftover.is_empty()) {
            (deadline, true) => deadline,
            (None, false) => Some(SWEEP),
            (Some(deadline), false) => Some(deadline.min(SWEEP)),
        }
    }

    /// Making spares takes a processor and interrupts the others: not while something runs, unless none is left.
    pub(super) fn has_idle_work(&self) -> bool {
        let idle = self.running.iter().all(|(_, run)| run.answered);
        self.spares.wanting() && (idle || self.spares.none_left())
    }

    pub(super) fn do_idle_work(&mut self) {
        self.spares.refill(&mut self.home, &self.filter);
    }

    /// Removes groups that were still busy when their run was over.
    pub(super) fn sweep(&mut self) {
        self.leftover =
            std::mem::take(&mut self.leftover).into_iter().filter_map(|g| g.remove().err()).collect();
        self.home.groups.sweep();
    }

    /// Kills everything and waits until it is gone.
    pub(super) fn end_all(mut self) {
        for (_, run) in &self.running {
            run.kill();
        }
        for (_, run) in self.running.drain(..) {
            let _reaped = rustix::process::waitid(WaitId::PidFd(run.pidfd.as_fd()), WaitIdOptions::EXITED);
            self.leftover.extend(run.group.and_then(|group| group.remove().err()));
        }
        let groups = self.spares.end_all();
        self.leftover.extend(groups.into_iter().filter_map(|group| group.remove().err()));
        let patience = Instant::now() + Duration::from_secs(1);
        while !self.leftover.is_empty() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(2));
            self.sweep();
        }
    }
}
