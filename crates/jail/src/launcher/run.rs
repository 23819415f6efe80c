//! One run: what it waits for, and how it ended. `run_state` has the diagram of its states.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use belljar_model::denial::Denials;
use belljar_model::layer::Layer;
use belljar_model::outcome::{Usage, Warmth};
use rustix::io::Errno;
use rustix::process::Signal;

use super::memory_share::MemoryClaim;
use super::oom_score::{OomScores, Standing};
use super::recyclable::{IdSource, Recyclable};
use super::run_state::{ChildEnd, RunEvent, RunState};
use super::sandbox_run::{SandboxRun, sandbox_ending};
use super::setup::LauncherContext;
use super::warm::namespaces::NamespaceSet;
use super::warm::running_child::RunningChild;
use super::watch::notify_budget::NotifyBudget;
use super::watch::process_owner::ProcessOwners;
use super::watch::seccomp_notify::NotifyListener;
use crate::cgroup::{Controller, Group};
use crate::inside::{self, ArtifactCollector};
use crate::seccomp::SeccompFilter;
use crate::spec::{Jail, JailEnding};
use crate::step::{Step, StepFailed};
use crate::sys::{self, CloneResult};
use crate::wire::LauncherEvent;

/// The handles of a jail while something runs in it: PID 1, its report pipe, and what can be recycled
/// afterwards.
pub(super) struct StartedJail {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) report: Option<OwnedFd>,
    pub(super) recyclable: Recyclable,
}

/// A run, from its start until its PID 1 has been reaped.
pub(super) struct Run {
    /// The pid of its PID 1 on the host.
    pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) report: Option<OwnedFd>,
    pub(super) recyclable: Recyclable,
    pub(super) layers: Vec<Layer>,
    started: Instant,
    pub(super) deadline: Option<Instant>,
    pub(super) state: RunState,
    pub(super) child: Option<RunningChild>,
    /// The seccomp notification listeners of its processes.
    pub(super) listener: NotifyListener,
    /// Attributes processes to commands, if it is a sandbox.
    process_owners: ProcessOwners,
    /// Whether its disk was full at the end.
    pub(super) disk_full: bool,
    /// Its limit on processes and threads.
    max_processes: u64,
    pub(super) warmth: Warmth,
    /// Its additional state, if it is a sandbox.
    sandbox: Option<SandboxRun>,
    pub(super) tenant: String,
    /// Its memory limit.
    pub(super) memory_limit_bytes: u64,
    /// Its part of its tenant's memory share.
    pub(super) memory_claim: Option<MemoryClaim>,
    /// When to check again for an out-of-memory kill, and how many checks are left.
    pub(super) oom_check: Option<(Instant, u32)>,
}

impl Run {
    pub(super) fn new(
        parts: StartedJail,
        layers: Vec<Layer>,
        started: Instant,
        jail: &Jail,
        listener: NotifyListener,
    ) -> Self {
        let limits = &jail.limits;
        Self {
            pid: parts.pid,
            pidfd: parts.pidfd,
            report: parts.report,
            recyclable: parts.recyclable,
            layers,
            started,
            deadline: jail.timeout.and_then(|timeout| started.checked_add(timeout)),
            state: RunState::Running,
            child: None,
            listener,
            process_owners: ProcessOwners::new(started),
            disk_full: false,
            max_processes: limits.processes.into(),
            warmth: Warmth::Cold,
            sandbox: jail.is_sandbox.then(|| SandboxRun::new(Instant::now())),
            tenant: jail.tenant.clone(),
            memory_limit_bytes: limits.memory_bytes,
            memory_claim: None,
            oom_check: None,
        }
    }

    /// Sets the OOM scores of its processes. Returns how many processes were looked at.
    pub(super) fn set_oom_scores(&self, context: &LauncherContext, standing: Standing) -> usize {
        let main = match &self.child {
            // Its pid may belong to another process by now.
            Some(child) if child.is_reaped() => return 0,
            Some(child) => child.pid(),
            None => self.pid,
        };
        OomScores::for_standing(standing, self.is_sandbox()).apply(context, main, self.group())
    }

    pub(super) fn is_sandbox(&self) -> bool {
        self.sandbox.is_some()
    }

    /// Returns its sandbox state and its cgroup, if it is a sandbox.
    pub(super) fn sandbox_mut(&mut self) -> Option<(&mut SandboxRun, Option<&Group>)> {
        Some((self.sandbox.as_mut()?, self.recyclable.group.as_ref()))
    }

    /// Returns when its pausing or resuming must proceed.
    pub(super) fn pausing_due(&self, now: Instant) -> Option<Instant> {
        self.sandbox.as_ref().and_then(|sandbox| sandbox.pause_queue.next_step_at(now))
    }

    /// Handles the end of the report pipe. In a sandbox, PID 1 has become the guest or has exited.
    pub(super) fn report_closed(&mut self, context: &LauncherContext) {
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.open_disk(context, self.pid);
        }
    }

    pub(super) fn group(&self) -> Option<&Group> {
        self.recyclable.group.as_ref()
    }

    /// Returns the number of the zygote that it came of.
    pub(super) fn zygote(&self) -> Option<u64> {
        match &self.recyclable.ids {
            IdSource::NamespaceSet(namespace_set) => Some(namespace_set.zygote),
            IdSource::Lease(_) => None,
        }
    }

    /// Returns its warm child that has not been reaped, and the namespace set of that child.
    pub(super) fn unreaped_child(&self) -> Option<(&NamespaceSet, i32)> {
        let child = self.child.as_ref().filter(|child| !child.is_reaped())?;
        match &self.recyclable.ids {
            IdSource::NamespaceSet(namespace_set) => Some((namespace_set, child.pid())),
            IdSource::Lease(_) => None,
        }
    }

    /// Returns whether its cgroup has a single thread. While that thread is stopped, nothing changes its
    /// memory. `false` if no cgroup counts.
    pub(super) fn has_one_thread(&self) -> bool {
        self.group().is_some_and(Group::has_one_thread)
    }

    /// Kills PID 1, and with it every process of the jail, and the artifact collector.
    pub(super) fn kill(&mut self) {
        // The collector needs the disk.
        if let Some(child) = self.child.as_mut().filter(|_| !matches!(self.state, RunState::Draining(_))) {
            child.close_disk();
        }
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.close_disk();
        }
        for process in self.state.collector().into_iter().chain([&self.pidfd]) {
            // This fails only if the process has already exited.
            let _killed = rustix::process::pidfd_send_signal(process, Signal::KILL);
        }
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.pause_queue.thaw_for_kill(self.recyclable.group.as_ref());
        }
    }

    /// Returns whether a process is its PID 1 or its warm child.
    pub(super) fn owns_pid(&self, pid: i32) -> bool {
        self.pid == pid || self.child.as_ref().is_some_and(|child| child.pid() == pid)
    }

    /// Returns whether one of its processes was killed because memory ran out.
    pub(super) fn had_oom_kill(&self) -> bool {
        self.group().is_some_and(|group| group.oom_kills() > 0)
    }

    /// Ends the run if one of its processes was killed because memory ran out.
    pub(super) fn end_if_out_of_memory(&mut self, number: u64) -> Option<LauncherEvent> {
        if self.state.is_answered() || !self.had_oom_kill() {
            return None;
        }
        self.kill();
        let ending = self.memory_ending();
        Some(self.ended(number, ending, Usage::default()))
    }

    /// Returns whether it must be checked for an out-of-memory kill now.
    pub(super) fn is_oom_check_due(&self, now: Instant) -> bool {
        self.oom_check.is_some_and(|(at, _)| at <= now)
    }

    /// Schedules the next check for an out-of-memory kill, if any are left.
    pub(super) fn schedule_oom_check(&mut self, at: Instant) {
        let left =
            self.oom_check.filter(|_| !self.state.is_answered()).and_then(|(_, left)| left.checked_sub(1));
        self.oom_check = left.map(|left| (at, left));
    }

    /// Returns the ending for an out-of-memory kill: the jail's own limit, or the memory of all jails.
    pub(super) fn memory_ending(&self) -> JailEnding {
        let from_above = self.group().is_some_and(Group::was_killed_for_total_memory);
        if from_above { JailEnding::MachineMemory } else { JailEnding::Memory }
    }

    /// Returns how the program ended, from its wait status and the state of its disk.
    pub(super) fn ending_for_status(&self, status: i32, disk_full: bool) -> JailEnding {
        let forks_refused = || self.group().is_some_and(|group| group.forks_refused() > 0);
        if self.had_oom_kill() {
            return self.memory_ending();
        }
        if libc::WIFSIGNALED(status) {
            return match libc::WTERMSIG(status) {
                libc::SIGXFSZ => JailEnding::Disk(None),
                signal => JailEnding::Signalled(signal),
            };
        }
        match libc::WEXITSTATUS(status) as u8 {
            0 => JailEnding::Exited(0),
            status if disk_full => JailEnding::Disk(Some(status)),
            status if forks_refused() => JailEnding::Processes(status),
            status => JailEnding::Exited(status),
        }
    }

    /// Marks the run as answered and returns the event for its ending. `seen` is its usage where no cgroup
    /// counts.
    pub(super) fn ended(&mut self, run: u64, ending: JailEnding, seen: Usage) -> LauncherEvent {
        self.state.handle(RunEvent::Answered);
        self.ended_event(run, ending, seen)
    }

    fn ended_event(&mut self, run: u64, ending: JailEnding, seen: Usage) -> LauncherEvent {
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
        let denials = self.denials(&usage);
        LauncherEvent::Ended { run, ending, usage, duration, layers, warmth: self.warmth, denials }
    }

    /// Handles seccomp notifications. Returns the wait status of a warm child that announced its exit.
    pub(super) fn poll_notifications(
        &mut self,
        context: &LauncherContext,
        budget: &mut NotifyBudget,
    ) -> Option<i32> {
        let main = self.child.as_ref().map(RunningChild::pid);
        let (guest, is_sandbox, jails) = (self.pid, self.is_sandbox(), budget.sandboxes());
        let owners = &mut self.process_owners;
        let now = Instant::now();
        let mut owner =
            |caller| if is_sandbox { owners.session_of(&context.proc, guest, caller, jails, now) } else { 0 };
        self.listener.poll(main, budget, &mut owner)
    }

    /// Returns what was denied to the run. Reads the number of refused forks only if the run came near its
    /// process limit, which most never do.
    fn denials(&mut self, usage: &Usage) -> Denials {
        let near = usage.peak_processes.is_none_or(|peak| peak >= self.max_processes);
        let forks_refused = self.group().filter(|_| near).map_or(0, Group::forks_refused);
        let (calls, more_calls) = self.listener.take_denied();
        Denials { calls, more_calls, forks_refused, memory_kills: 0, disk_full: self.disk_full }
    }

    /// Marks the run as answered and returns the event for a failed setup step.
    pub(super) fn failed(&mut self, run: u64, failure: StepFailed) -> LauncherEvent {
        self.state.handle(RunEvent::Answered);
        LauncherEvent::Failed { run, failure }
    }

    /// Returns the usage of a warm child according to `/proc`, if no cgroup counts it.
    pub(super) fn usage_where_uncounted(&self, context: &LauncherContext) -> Usage {
        let counted = self.group().is_some() && context.has_controller(Controller::Memory);
        let child = self.child.as_ref().filter(|child| !counted && !child.is_reaped());
        child.map(|child| child.usage(context)).unwrap_or_default()
    }

    /// Handles the end of a warm child: returns the event, or first has its artifacts collected.
    pub(super) fn finish_child(&mut self, number: u64, status: i32, usage: Usage) -> Option<LauncherEvent> {
        let child = self.child.as_ref().filter(|_| self.state.is_running())?;
        self.disk_full = child.disk_is_full();
        let ending = self.ending_for_status(status, self.disk_full);
        if !child.has_artifacts() {
            self.state.handle(RunEvent::ChildAnswered);
            return Some(self.ended_event(number, ending, usage));
        }
        self.state.handle(RunEvent::ArtifactsLeft(ChildEnd { ending, usage }));
        // No process may change files while the collector reads them.
        self.kill();
        None
    }

    /// Returns the event for a run whose PID 1 exited with this status, unless it was answered before.
    pub(super) fn finish(&mut self, number: u64, status: i32) -> Option<LauncherEvent> {
        if self.state.is_answered() {
            return None;
        }
        let out_of_memory = self.had_oom_kill().then(|| self.memory_ending());
        let (ending, usage) = match (&self.state, out_of_memory) {
            (RunState::Closing, _) => (JailEnding::Killed, Usage::default()),
            (_, memory) if self.is_sandbox() => (sandbox_ending(status, memory), Usage::default()),
            (_, Some(memory)) => (memory, Usage::default()),
            (RunState::Draining(end) | RunState::Collecting(end, _), None) => (end.ending, end.usage),
            (_, None) => {
                let failure = StepFailed::new(Step::Init, "(it was killed)", Errno::CHILD);
                return Some(self.failed(number, failure));
            }
        };
        Some(self.ended(number, ending, usage))
    }

    /// Starts to collect the artifacts of a warm child, if it left any and every process in the jail has
    /// exited. Returns whether a collector runs now.
    pub(super) fn start_collecting(&mut self, filter: &SeccompFilter) -> bool {
        if !matches!(self.state, RunState::Draining(_)) {
            return false;
        }
        let started = self.start_collector(filter).ok();
        started.map(|collector| self.state.handle(RunEvent::CollectorStarted(collector))).is_some()
    }

    fn start_collector(&mut self, filter: &SeccompFilter) -> Result<OwnedFd, Errno> {
        let IdSource::NamespaceSet(namespace_set) = &self.recyclable.ids else { return Err(Errno::INVAL) };
        let child = self.child.as_mut().ok_or(Errno::INVAL)?;
        // The launcher's copy is closed at the end of this function, so the pipe ends when the collector
        // exits.
        let pipe = child.artifacts_pipe.take().ok_or(Errno::BADF)?;
        let rules = child.artifact_rules.as_ref().ok_or(Errno::INVAL)?;
        let (user, mounts, disk) =
            (&namespace_set.user, &namespace_set.mounts, child.disk.as_ref().ok_or(Errno::BADF)?);
        let collector = ArtifactCollector { rules, user, mounts, disk, pipe: &pipe, filter };
        let collector = match sys::clone(0, None)? {
            CloneResult::Child => inside::run_collector(&collector),
            CloneResult::Parent { pidfd, .. } => pidfd.ok_or(Errno::NOSYS)?,
        };
        child.close_disk();
        Ok(collector)
    }

    /// Reaps the collector and returns the event for the run's ending, unless it was answered before.
    pub(super) fn finish_collecting(&mut self, number: u64) -> Option<LauncherEvent> {
        let _reaped = sys::wait_pidfd(self.state.collector()?.as_fd());
        match self.state {
            RunState::Collecting(end, _) => Some(self.ended(number, end.ending, end.usage)),
            _ => None,
        }
    }
}
