//! One run: what it is waiting for, and how it ended.
//!
//! ```text
//! started ──report──▶ answered ──PID 1 is gone──▶ tidied
//!    ├──deadline, out of memory, kill: answered, and PID 1 killed──┘
//!    └──a child's ending, with artifacts: PID 1 killed──gone──▶ collected ──▶ answered and tidied
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::Signal;

use super::child::RunningChild;
use super::ear::Ear;
use super::hearing::Hearing;
use super::home::Home;
use super::living::Life;
use super::memory_share::Claim;
use super::oom_score::{OomScores, Standing};
use super::owner::Owners;
use super::plot::Plot;
use super::start::{Lodging, Parts, Remains};
use crate::cgroup::{Controller, Group};
use crate::inside::{self, Collector};
use crate::seccomp::Filter;
use crate::spec::{Ending, Jail, Kept, Layer, Usage, Warmth};
use crate::step::StepFailed;
use crate::sys::{self, Cloned};
use crate::wire::Notice;

pub(super) struct Run {
    /// Number of its PID 1 on the host.
    pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) report: Option<OwnedFd>,
    remains: Remains,
    layers: Vec<Layer>,
    started: Instant,
    pub(super) deadline: Option<Instant>,
    pub(super) answered: bool,
    /// To be killed as soon as the answer is on its way.
    pub(super) doomed: bool,
    pub(super) child: Option<RunningChild>,
    /// Where its filter tells.
    pub(super) ear: Ear,
    /// Whose its processes are, where it stays.
    owners: Owners,
    /// Whether its disk was full at the end.
    pub(super) disk_full: bool,
    /// How many processes and threads it may have.
    processes: u64,
    pub(super) collecting: Collecting,
    /// What a child had used at its end, where no control group counts.
    seen: Usage,
    warmth: Warmth,
    /// What it has where it stays.
    life: Option<Life>,
    tenant: String,
    memory_bytes: u64,
    /// Its part of what its tenant holds of the memory for all jails.
    pub(super) claim: Option<Claim>,
    /// When to look again whether a process was killed for want of memory, and how often still.
    pub(super) memory_doubt: Option<(Instant, u32)>,
}

/// How far the artifacts of a child are, and how that had ended.
pub(super) enum Collecting {
    No,
    /// As soon as everybody in the jail is gone.
    Due(Ending),
    /// By this process.
    Now(Ending, OwnedFd),
}

impl Run {
    pub(super) fn new(parts: Parts, layers: Vec<Layer>, started: Instant, jail: &Jail) -> Self {
        let limits = &jail.limits;
        Self {
            pid: parts.pid,
            pidfd: parts.pidfd,
            report: parts.told,
            remains: parts.remains,
            layers,
            started,
            deadline: limits.timeout.and_then(|timeout| started.checked_add(timeout)),
            answered: false,
            doomed: false,
            child: None,
            ear: Ear::default(),
            owners: Owners::new(started),
            disk_full: false,
            processes: limits.processes.into(),
            collecting: Collecting::No,
            seen: Usage::default(),
            warmth: Warmth::Cold,
            life: None,
            tenant: jail.tenant.clone(),
            memory_bytes: limits.memory_bytes,
            claim: None,
            memory_doubt: None,
        }
    }

    /// The same as a jail that stays.
    pub(super) fn living(self) -> Self {
        Self { life: Some(Life::new(Instant::now())), ..self }
    }

    pub(super) fn tenant(&self) -> &str {
        &self.tenant
    }

    /// What its processes may use.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Has the kernel end its processes sooner or later when memory runs out; says how many processes that took.
    pub(super) fn set_oom_scores(&self, home: &Home, standing: Standing) -> usize {
        let main = match &self.child {
            // Its number may be another's.
            Some(child) if child.is_reaped() => return 0,
            Some(child) => child.pid(),
            None => self.pid,
        };
        OomScores::of(standing, self.is_living()).apply(home, main, self.group())
    }

    pub(super) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    pub(super) fn is_living(&self) -> bool {
        self.life.is_some()
    }

    /// What it has where it stays, and its group.
    pub(super) fn life(&mut self) -> Option<(&mut Life, Option<&Group>)> {
        Some((self.life.as_mut()?, self.remains.group.as_ref()))
    }

    /// When there is something to do about pausing or resuming it.
    pub(super) fn pausing_due(&self, now: Instant) -> Option<Instant> {
        self.life.as_ref().and_then(|life| life.pausing.due(now))
    }

    /// PID 1 of one that stays says no more: it has become the guest, or is gone.
    pub(super) fn settle(&mut self, home: &Home) {
        if let Some(life) = &mut self.life {
            life.settle(home, self.pid);
        }
    }

    /// How one that stays has ended.
    pub(super) fn fate(&self, status: i32) -> Option<Ending> {
        let memory = self.out_of_memory().then(|| self.memory_ending());
        self.life.as_ref().map(|life| life.ending(status, memory))
    }

    /// The same, with a zygote's child for a program.
    pub(super) fn with_child(self, child: RunningChild, warmth: Warmth) -> Self {
        Self { child: Some(child), warmth, ..self }
    }

    /// The same, heard.
    pub(super) fn with_ear(self, ear: Ear) -> Self {
        Self { ear, ..self }
    }

    pub(super) fn group(&self) -> Option<&Group> {
        self.remains.group.as_ref()
    }

    pub(super) fn into_remains(self) -> Remains {
        self.remains
    }

    /// Number of the zygote that it came of.
    pub(super) fn zygote(&self) -> Option<u64> {
        match &self.remains.lodging {
            Lodging::Plot(plot) => Some(plot.zygote),
            Lodging::Ids(_) => None,
        }
    }

    /// A child that waits to be killed, and where it lives.
    pub(super) fn spent_child(&self) -> Option<(&Plot, i32)> {
        let child = self.child.as_ref().filter(|child| !child.is_reaped())?;
        match &self.remains.lodging {
            Lodging::Plot(plot) => Some((plot, child.pid())),
            Lodging::Ids(_) => None,
        }
    }

    /// Whether its group has a single thread, so that nothing changes that thread's memory while it is held. Where nothing
    /// is counted the answer is no.
    pub(super) fn is_alone(&self) -> bool {
        self.group().is_some_and(Group::has_one_thread)
    }

    pub(super) fn kill(&mut self) {
        if let Some(child) = self.child.as_mut().filter(|_| !matches!(self.collecting, Collecting::Due(_))) {
            child.close_disk();
        }
        if let Some(life) = &mut self.life {
            life.close_disk();
        }
        let collector = match &self.collecting {
            Collecting::Now(_, collector) => Some(collector),
            Collecting::No | Collecting::Due(_) => None,
        };
        for process in collector.into_iter().chain([&self.pidfd]) {
            // Only a process that is gone already cannot be killed, and that is what is wanted.
            let _killed = rustix::process::pidfd_send_signal(process, Signal::KILL);
        }
        if let Some(life) = &mut self.life {
            life.pausing.let_die(self.remains.group.as_ref());
        }
    }

    pub(super) fn knows(&self, pid: i32) -> bool {
        self.pid == pid || self.child.as_ref().is_some_and(|child| child.pid() == pid)
    }

    pub(super) fn out_of_memory(&self) -> bool {
        self.group().is_some_and(|group| group.oom_kills() > 0)
    }

    /// Ends it where one of its processes was killed for want of memory.
    pub(super) fn end_if_out_of_memory(&mut self, number: u64) -> Option<Notice> {
        if self.answered || !self.out_of_memory() {
            return None;
        }
        self.kill();
        let ending = self.memory_ending();
        Some(self.ended(number, ending, Usage::default()))
    }

    pub(super) fn is_doubt_due(&self, now: Instant) -> bool {
        self.memory_doubt.is_some_and(|(at, _)| at <= now)
    }

    /// Looks again at this time, where there are looks left.
    pub(super) fn doubt_on(&mut self, at: Instant) {
        let left = self.memory_doubt.filter(|_| !self.answered).and_then(|(_, left)| left.checked_sub(1));
        self.memory_doubt = left.map(|left| (at, left));
    }

    /// Whose memory was used up, where a process was killed for want of it.
    pub(super) fn memory_ending(&self) -> Ending {
        let from_above = self.group().is_some_and(Group::was_killed_from_above);
        if from_above { Ending::MachineMemory } else { Ending::Memory }
    }

    /// What ended the program, given what was seen of it.
    pub(super) fn judge(&self, status: i32, disk_full: bool) -> Ending {
        let forks_refused = || self.group().is_some_and(|group| group.forks_refused() > 0);
        if self.out_of_memory() {
            return self.memory_ending();
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

    pub(super) fn ended(&mut self, run: u64, ending: Ending, seen: Usage) -> Notice {
        self.answered = true;
        let group = self.group().map(Group::usage).unwrap_or_default();
        // What a child took to get ready is not the program's; nor is PID 1, where it is in the same group.
        let before = self.child.as_ref().map(|child| child.cpu_before).unwrap_or_default();
        let ours = u64::from(self.child.is_none());
        let usage = Usage {
            cpu: group.cpu.unwrap_or(seen.cpu).saturating_sub(before),
            peak_memory_bytes: group.peak_memory_bytes.unwrap_or(seen.peak_memory_bytes),
            peak_processes: group.peak_processes.map(|peak| peak.saturating_sub(ours)),
        };
        let (duration, layers) = (self.started.elapsed(), self.layers.clone());
        let kept = self.kept(&usage);
        Notice::Ended { run, ending, usage, duration, layers, warmth: self.warmth, kept }
    }

    /// Hears what its filters tell; the status of a child that is about to end.
    pub(super) fn hear(&mut self, home: &Home, hearing: &mut Hearing) -> Option<i32> {
        let main = self.child.as_ref().map(RunningChild::pid);
        let (guest, living, jails) = (self.pid, self.is_living(), hearing.jails());
        let owners = &mut self.owners;
        let now = Instant::now();
        let mut owner = |caller| if living { owners.of(&home.proc, guest, caller, jails, now) } else { 0 };
        self.ear.hear(main, hearing, &mut owner)
    }

    /// What it was kept from. Most programs never come near to the number of processes that they may have, and then nobody
    /// has to look.
    fn kept(&mut self, usage: &Usage) -> Kept {
        let near = usage.peak_processes.is_none_or(|peak| peak >= self.processes);
        let forks_refused = self.group().filter(|_| near).map_or(0, Group::forks_refused);
        let (calls, more_calls) = self.ear.take_refused();
        Kept { calls, more_calls, forks_refused, disk_full: self.disk_full }
    }

    pub(super) fn failed(&mut self, run: u64, failure: StepFailed) -> Notice {
        self.answered = true;
        Notice::Failed { run, failure }
    }

    pub(super) fn usage_where_uncounted(&self, home: &Home) -> Usage {
        let counted = self.group().is_some() && home.has(Controller::Memory);
        let child = self.child.as_ref().filter(|child| !counted && !child.is_reaped());
        child.map(|child| child.usage(home)).unwrap_or_default()
    }

    /// What a child's status comes to: an answer, or first its artifacts.
    pub(super) fn conclude(&mut self, number: u64, status: i32, seen: Usage) -> Option<Notice> {
        self.seen = seen;
        let child = self.child.as_ref()?;
        self.disk_full = child.disk_is_full();
        let ending = self.judge(status, self.disk_full);
        if !child.left_artifacts() {
            self.doomed = true;
            return Some(self.ended(number, ending, seen));
        }
        self.collecting = Collecting::Due(ending);
        // Nobody may change files under the collector.
        self.kill();
        None
    }

    /// Begins to collect what the child left; nobody lives in the jail any more. Gives the ending where that cannot be.
    pub(super) fn collect(&mut self, ending: Ending, filter: &Filter) -> Option<Ending> {
        match self.start_collector(filter) {
            Ok(collector) => {
                self.collecting = Collecting::Now(ending, collector);
                None
            }
            Err(_) => Some(ending),
        }
    }

    fn start_collector(&mut self, filter: &Filter) -> Result<OwnedFd, Errno> {
        let Lodging::Plot(plot) = &self.remains.lodging else { return Err(Errno::INVAL) };
        let child = self.child.as_mut().ok_or(Errno::INVAL)?;
        // Closed here when this is over: the pipe is at its end when the collector is.
        let pipe = child.take_collector_pipe().ok_or(Errno::BADF)?;
        let rules = child.artifact_rules().ok_or(Errno::INVAL)?;
        let (user, mounts, disk) = (&plot.user, &plot.mounts, child.disk().ok_or(Errno::BADF)?);
        let collector = Collector { rules, user, mounts, disk, pipe: &pipe, filter };
        let collector = match sys::clone(0, None)? {
            Cloned::Child => inside::enter_collector(&collector),
            Cloned::Parent { pidfd, .. } => pidfd.ok_or(Errno::NOSYS)?,
        };
        child.close_disk();
        Ok(collector)
    }

    /// Its collector is done.
    pub(super) fn collected(&mut self, number: u64) -> Option<Notice> {
        let Collecting::Now(ending, collector) = std::mem::replace(&mut self.collecting, Collecting::No)
        else {
            return None;
        };
        let _reaped = sys::wait_for(collector.as_fd());
        (!self.answered).then(|| self.ended(number, ending, self.seen))
    }
}
