//! Which denials belong to which command of a sandbox.
//!
//! The seccomp listener knows which process made a call. Counters and egress know only the sandbox: what they
//! recorded is attributed to a command if nothing else ran from before its start until now, and otherwise to
//! no command.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_egress::{Egress, RefusalMark};
use belljar_engine::explain::{self, Denials};
use belljar_engine::finding::Finding;
use belljar_engine::outcome::Ending;
use belljar_engine::sandbox_handle::{
    DirectoryEntry, Files, ProcessId, ProcessInfo, SandboxError, SandboxStats,
};

use super::GuestSandbox;

/// The commands being started in one sandbox.
#[derive(Debug, Default)]
pub(super) struct CommandStarts(Mutex<StartCounts>);

#[derive(Debug, Default)]
struct StartCounts {
    started: u64,
    finished: u64,
    /// The latest command, if nothing else has run since before its start.
    exclusive: Option<(ProcessId, Arc<Baseline>)>,
}

/// The sandbox's counters before a command or task was started.
#[derive(Debug)]
pub(super) struct Baseline {
    pub(super) stats: SandboxStats,
    mark: Option<RefusalMark>,
}

/// A command that is being started. Until this is dropped, no other command is exclusive.
#[derive(Debug)]
pub(super) struct PendingStart<'a> {
    starts: &'a CommandStarts,
    number: u64,
    overlapping: bool,
}

impl CommandStarts {
    pub(super) fn begin(&self) -> PendingStart<'_> {
        let mut started = self.lock();
        started.started += 1;
        started.exclusive = None;
        PendingStart {
            starts: self,
            number: started.started,
            overlapping: started.started != started.finished + 1,
        }
    }

    /// Returns the counters from before a command that has been exclusive since its start.
    fn baseline_of(&self, command: ProcessId) -> Option<Arc<Baseline>> {
        self.lock().exclusive.clone().filter(|(alone, _)| *alone == command).map(|(_, before)| before)
    }

    fn lock(&self) -> MutexGuard<'_, StartCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingStart<'_> {
    /// Returns whether nothing else ran before, and nothing has been started since.
    pub(super) fn is_exclusive(&self, before: &Baseline) -> bool {
        !self.overlapping && before.stats.processes == Some(0) && self.starts.lock().started == self.number
    }

    /// Records that the command was started, with the counters from before, if they were read.
    pub(super) fn finish(self, command: ProcessId, before: Option<Baseline>) {
        if let Some(before) = before.filter(|before| self.is_exclusive(before)) {
            self.starts.lock().exclusive = Some((command, Arc::new(before)));
        }
    }
}

impl Drop for PendingStart<'_> {
    fn drop(&mut self) {
        self.starts.lock().finished += 1;
    }
}

impl GuestSandbox {
    /// Begins the start of a command. The counters are read only where denials are attributed to commands.
    pub(super) async fn begin_command(&self) -> Result<(PendingStart<'_>, Option<Baseline>), SandboxError> {
        self.writable_guest()?;
        let start = self.starts.begin();
        let before = if self.backend.records_denied_calls() { Some(self.baseline().await?) } else { None };
        Ok((start, before))
    }

    /// Returns the current counters.
    pub(super) async fn baseline(&self) -> Result<Baseline, SandboxError> {
        let mut stats = self.backend.stats().await?;
        if stats.processes.is_none() && !self.single_task {
            stats.processes = self.count_processes().await;
        }
        Ok(Baseline { stats, mark: self.egress.as_ref().map(Egress::mark) })
    }

    /// Returns the number of processes besides the guest, as the guest reports it, for hosts that cannot
    /// count them.
    async fn count_processes(&self) -> Option<u64> {
        let page = Files::list(self, "/proc", None, 8).await.ok()?;
        let is_process = |entry: &&DirectoryEntry| entry.name.bytes().all(|byte| byte.is_ascii_digit());
        (page.entries.iter().filter(is_process).count() as u64).checked_sub(1)
    }

    /// Returns the denied system calls of the commands with these pids inside, or of all if `None`.
    async fn denied_calls(&self, pids: Option<&[u32]>) -> Result<Denials, SandboxError> {
        let mut denials = Denials::default();
        for (pid, call) in self.backend.denied_calls().await? {
            if pids.is_none_or(|pids| pids.contains(&pid)) {
                denials.add(call);
            }
        }
        Ok(denials)
    }

    /// Returns the denied system calls of these commands. Their pids inside are fetched only if there are any
    /// denials.
    async fn denied_calls_of(&self, commands: &[ProcessId]) -> Result<Denials, SandboxError> {
        if self.denied_calls(None).await?.calls.is_empty() || self.running_guest().is_err() {
            return Ok(Denials::default());
        }
        let all = self.convert_result(self.guest.processes().await).await?;
        let theirs = all.iter().filter(|info| commands.contains(&info.id)).map(|info| info.pid);
        self.denied_calls(Some(&theirs.collect::<Vec<_>>())).await
    }

    pub(super) async fn command_denials(&self, command: &ProcessInfo) -> Result<Vec<Finding>, SandboxError> {
        let mut denials = self.denied_calls(Some(&[command.pid])).await?;
        let mut hosts = Vec::new();
        if let Some(before) = self.starts.baseline_of(command.id) {
            let (now, refused) = (self.backend.stats().await?, self.refused_hosts(&before));
            // Count them only if nothing was started meanwhile, which could be the cause.
            if self.starts.baseline_of(command.id).is_some() {
                before.add_counted(&mut denials, &now);
                hosts = refused;
            }
        }
        Ok(self.findings(&denials, Ending::Exited(0), hosts))
    }

    /// Returns findings on everything that was denied in the sandbox so far.
    pub(super) async fn sandbox_denials(&self) -> Result<Vec<Finding>, SandboxError> {
        let denials = self.denied_calls(None).await?;
        let SandboxStats { forks_refused, memory_kills, disk_full, .. } = self.backend.stats().await?;
        let denials = Denials { forks_refused, memory_kills, disk_full, ..denials };
        Ok(self.findings(&denials, Ending::Exited(0), self.all_refused_hosts()))
    }

    /// Returns findings on what a task's commands were denied.
    pub(super) async fn task_denials(
        &self,
        task: &StartedTask<'_>,
        now: &SandboxStats,
        ending: Ending,
    ) -> Result<Vec<Finding>, SandboxError> {
        let mut denials = self.denied_calls_of(&task.commands).await?;
        let mut hosts = Vec::new();
        if self.single_task || task.start.is_exclusive(&task.before) {
            task.before.add_counted(&mut denials, now);
            hosts = self.refused_hosts(&task.before);
        }
        Ok(self.findings(&denials, ending, hosts))
    }

    fn findings(&self, denials: &Denials, ending: Ending, hosts: Vec<Finding>) -> Vec<Finding> {
        let mut findings = explain::denial_findings(denials, ending, &self.plan.limits);
        findings.extend(hosts);
        findings
    }

    /// Returns findings on hosts that were refused since then.
    fn refused_hosts(&self, before: &Baseline) -> Vec<Finding> {
        let egress = self.egress.as_ref().zip(before.mark.as_ref());
        egress.map(|(egress, mark)| egress.findings_since(mark)).unwrap_or_default()
    }

    /// Returns findings on all hosts that were refused.
    pub(super) fn all_refused_hosts(&self) -> Vec<Finding> {
        self.egress.as_ref().map(Egress::findings).unwrap_or_default()
    }
}

impl Baseline {
    /// Adds what the counters of the whole sandbox recorded since then.
    fn add_counted(&self, denials: &mut Denials, now: &SandboxStats) {
        denials.forks_refused = now.forks_refused.saturating_sub(self.stats.forks_refused);
        denials.memory_kills = now.memory_kills.saturating_sub(self.stats.memory_kills);
        denials.disk_full = now.disk_full && !self.stats.disk_full;
    }
}

/// A task that was started, and the counters before it.
#[derive(Debug)]
pub(super) struct StartedTask<'a> {
    pub(super) start: PendingStart<'a>,
    pub(super) before: Baseline,
    /// Its commands.
    pub(super) commands: Vec<ProcessId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn before(processes: Option<u64>) -> Option<Baseline> {
        Some(Baseline { stats: SandboxStats { processes, ..SandboxStats::default() }, mark: None })
    }

    #[test]
    fn counters_are_attributed_to_exclusive_commands_only() {
        let starts = CommandStarts::default();
        let alone = |id| starts.baseline_of(ProcessId(id)).is_some();
        starts.begin().finish(ProcessId(1), before(Some(0)));
        assert!(alone(1));
        starts.begin().finish(ProcessId(2), before(Some(1)));
        assert!(!alone(1) && !alone(2), "the first command was still running");
        starts.begin().finish(ProcessId(3), before(None));
        assert!(!alone(3), "the number of processes is unknown");
        let (one, other) = (starts.begin(), starts.begin());
        one.finish(ProcessId(4), before(Some(0)));
        other.finish(ProcessId(5), before(Some(0)));
        assert!(!alone(4) && !alone(5), "both were started at once");
        let task = starts.begin();
        assert!(task.is_exclusive(&before(Some(0)).unwrap()));
        starts.begin().finish(ProcessId(6), before(Some(0)));
        assert!(
            !task.is_exclusive(&before(Some(0)).unwrap()) && !alone(6),
            "a task counts as running until it is dropped"
        );
        drop(task);
        starts.begin().finish(ProcessId(7), before(Some(0)));
        assert!(alone(7));
        drop(starts.begin());
        assert!(!alone(7), "a failed start may have run for a moment");
    }
}
