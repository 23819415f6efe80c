//! One run: what it waits for, and how it ended.
//!
//! ```text
//! started ──report──▶ answered ──PID 1 exits──▶ recycled
//!    ├──deadline, out of memory, kill: answered, and PID 1 killed──┘
//!    └──a warm child exits with artifacts: PID 1 killed──exits──▶ collected ──▶ answered and recycled
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

/// A run, from its start until its PID 1 has been reaped.
pub(super) struct Run {
    /// The pid of its PID 1 on the host.
    pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) report: Option<OwnedFd>,
    remains: Remains,
    layers: Vec<Layer>,
    started: Instant,
    pub(super) deadline: Option<Instant>,
    pub(super) answered: bool,
    /// Whether it is to be killed as soon as its answer has been sent.
    pub(super) doomed: bool,
    pub(super) child: Option<RunningChild>,
    /// The seccomp notification listeners of its processes.
    pub(super) ear: Ear,
    /// Attributes processes to commands, if it is a sandbox.
    owners: Owners,
    /// Whether its disk was full at the end.
    pub(super) disk_full: bool,
    /// Its limit on processes and threads.
    processes: u64,
    pub(super) collecting: Collecting,
    /// The usage of a warm child at its end, if no cgroup counts it.
    seen: Usage,
    warmth: Warmth,
    /// Its additional state, if it is a sandbox.
    life: Option<Life>,
    tenant: String,
    memory_bytes: u64,
    /// Its part of its tenant's memory share.
    pub(super) claim: Option<Claim>,
    /// When to check again for an out-of-memory kill, and how many checks are left.
    pub(super) memory_doubt: Option<(Instant, u32)>,
}

/// The state of collecting a warm child's artifacts, with the ending to report afterwards.
pub(super) enum Collecting {
    /// There is nothing to collect, or not yet.
    No,
    /// Collecting starts once every process in the jail has exited.
    Due(Ending),
    /// The process with this pidfd is collecting.
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

    /// Turns the run into a sandbox.
    pub(super) fn living(self) -> Self {
        Self { life: Some(Life::new(Instant::now())), ..self }
    }

    pub(super) fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Returns its memory limit in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Sets the OOM scores of its processes. Returns how many processes were looked at.
    pub(super) fn set_oom_scores(&self, home: &Home, standing: Standing) -> usize {
        let main = match &self.child {
            // Its pid may belong to another process by now.
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

    /// Returns its sandbox state and its cgroup, if it is a sandbox.
    pub(super) fn life(&mut self) -> Option<(&mut Life, Option<&Group>)> {
        Some((self.life.as_mut()?, self.remains.group.as_ref()))
    }

    /// Returns when its pausing or resuming must proceed.
    pub(super) fn pausing_due(&self, now: Instant) -> Option<Instant> {
        self.life.as_ref().and_then(|life| life.pausing.due(now))
    }

    /// Handles the end of the report pipe. In a sandbox, PID 1 has become the guest or has exited.
    pub(super) fn settle(&mut self, home: &Home) {
        if let Some(life) = &mut self.life {
            life.settle(home, self.pid);
        }
    }

    /// Returns how it ended, if it is a sandbox.
    pub(super) fn fate(&self, status: i32) -> Option<Ending> {
        let memory = self.out_of_memory().then(|| self.memory_ending());
        self.life.as_ref().map(|life| life.ending(status, memory))
    }

    /// Makes a warm child its program.
    pub(super) fn with_child(self, child: RunningChild, warmth: Warmth) -> Self {
        Self { child: Some(child), warmth, ..self }
    }

    /// Sets its seccomp notification listeners.
    pub(super) fn with_ear(self, ear: Ear) -> Self {
        Self { ear, ..self }
    }

    pub(super) fn group(&self) -> Option<&Group> {
        self.remains.group.as_ref()
    }

    pub(super) fn into_remains(self) -> Remains {
        self.remains
    }

    /// Returns the number of the zygote that it came of.
    pub(super) fn zygote(&self) -> Option<u64> {
        match &self.remains.lodging {
            Lodging::Plot(plot) => Some(plot.zygote),
            Lodging::Ids(_) => None,
        }
    }

    /// Returns its warm child that has not been reaped, and the namespace set of that child.
    pub(super) fn spent_child(&self) -> Option<(&Plot, i32)> {
        let child = self.child.as_ref().filter(|child| !child.is_reaped())?;
        match &self.remains.lodging {
            Lodging::Plot(plot) => Some((plot, child.pid())),
            Lodging::Ids(_) => None,
        }
    }

    /// Returns whether its cgroup has a single thread. While that thread is stopped, nothing changes its
    /// memory. `false` if no cgroup counts.
    pub(super) fn is_alone(&self) -> bool {
        self.group().is_some_and(Group::has_one_thread)
    }

    /// Kills PID 1, and with it every process of the jail, and the artifact collector.
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
            // This fails only if the process has already exited.
            let _killed = rustix::process::pidfd_send_signal(process, Signal::KILL);
        }
        if let Some(life) = &mut self.life {
            life.pausing.let_die(self.remains.group.as_ref());
        }
    }

    /// Returns whether a process is its PID 1 or its warm child.
    pub(super) fn knows(&self, pid: i32) -> bool {
        self.pid == pid || self.child.as_ref().is_some_and(|child| child.pid() == pid)
    }

    /// Returns whether one of its processes was killed because memory ran out.
    pub(super) fn out_of_memory(&self) -> bool {
        self.group().is_some_and(|group| group.oom_kills() > 0)
    }

    /// Ends the run if one of its processes was killed because memory ran out.
    pub(super) fn end_if_out_of_memory(&mut self, number: u64) -> Option<Notice> {
        if self.answered || !self.out_of_memory() {
            return None;
        }
        self.kill();
        let ending = self.memory_ending();
        Some(self.ended(number, ending, Usage::default()))
    }

    /// Returns whether it must be checked for an out-of-memory kill now.
    pub(super) fn is_doubt_due(&self, now: Instant) -> bool {
        self.memory_doubt.is_some_and(|(at, _)| at <= now)
    }

    /// Schedules the next check for an out-of-memory kill, if any are left.
    pub(super) fn doubt_on(&mut self, at: Instant) {
        let left = self.memory_doubt.filter(|_| !self.answered).and_then(|(_, left)| left.checked_sub(1));
        self.memory_doubt = left.map(|left| (at, left));
    }

    /// Returns the ending for an out-of-memory kill: the jail's own limit, or the memory of all jails.
    pub(super) fn memory_ending(&self) -> Ending {
        let from_above = self.group().is_some_and(Group::was_killed_from_above);
        if from_above { Ending::MachineMemory } else { Ending::Memory }
    }

    /// Returns how the program ended, from its wait status and the state of its disk.
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

    /// Marks the run as answered and returns the event for its ending. `seen` is its usage where no cgroup
    /// counts.
    pub(super) fn ended(&mut self, run: u64, ending: Ending, seen: Usage) -> Notice {
        self.answered = true;
        let group = self.group().map(Group::usage).unwrap_or_default();
        // The preparation of a warm child does not count for the program, nor does PID 1 if it is in the same
        // cgroup.
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

    /// Handles seccomp notifications. Returns the wait status of a warm child that announced its exit.
    pub(super) fn hear(&mut self, home: &Home, hearing: &mut Hearing) -> Option<i32> {
        let main = self.child.as_ref().map(RunningChild::pid);
        let (guest, living, jails) = (self.pid, self.is_living(), hearing.jails());
        let owners = &mut self.owners;
        let now = Instant::now();
        let mut owner = |caller| if living { owners.of(&home.proc, guest, caller, jails, now) } else { 0 };
        self.ear.hear(main, hearing, &mut owner)
    }

    /// Returns what was denied to the run. Reads the number of refused forks only if the run came near its
    /// process limit, which most never do.
    fn kept(&mut self, usage: &Usage) -> Kept {
        let near = usage.peak_processes.is_none_or(|peak| peak >= self.processes);
        let forks_refused = self.group().filter(|_| near).map_or(0, Group::forks_refused);
        let (calls, more_calls) = self.ear.take_refused();
        Kept { calls, more_calls, forks_refused, disk_full: self.disk_full }
    }

    /// Marks the run as answered and returns the event for a failed setup step.
    pub(super) fn failed(&mut self, run: u64, failure: StepFailed) -> Notice {
        self.answered = true;
        Notice::Failed { run, failure }
    }

    /// Returns the usage of a warm child according to `/proc`, if no cgroup counts it.
    pub(super) fn usage_where_uncounted(&self, home: &Home) -> Usage {
        let counted = self.group().is_some() && home.has(Controller::Memory);
        let child = self.child.as_ref().filter(|child| !counted && !child.is_reaped());
        child.map(|child| child.usage(home)).unwrap_or_default()
    }

    /// Handles the end of a warm child: returns the event, or first has its artifacts collected.
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
        // No process may change files while the collector reads them.
        self.kill();
        None
    }

    /// Starts to collect the child's artifacts, after every process in the jail has exited. Returns the
    /// ending if collecting cannot be started.
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
        // The launcher's copy is closed at the end of this function, so the pipe ends when the collector
        // exits.
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

    /// Reaps the collector and returns the event for the run's ending.
    pub(super) fn collected(&mut self, number: u64) -> Option<Notice> {
        let Collecting::Now(ending, collector) = std::mem::replace(&mut self.collecting, Collecting::No)
        else {
            return None;
        };
        let _reaped = sys::wait_for(collector.as_fd());
        (!self.answered).then(|| self.ended(number, ending, self.seen))
    }
}
