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
    DirectoryEntry, ProcessId, ProcessInfo, SandboxError, SandboxFuture, SandboxHandle, SandboxStats,
};
use belljar_jail::spec::{JailRequest, JailResponse};

use super::NativeLiving;
use crate::guest::task::DenialFindings;

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

    /// Records that the command was started.
    pub(super) fn finish(self, command: ProcessId, before: Baseline) {
        if self.is_exclusive(&before) {
            self.starts.lock().exclusive = Some((command, Arc::new(before)));
        }
    }
}

impl Drop for PendingStart<'_> {
    fn drop(&mut self) {
        self.starts.lock().finished += 1;
    }
}

impl NativeLiving {
    /// Returns the current counters.
    pub(super) async fn baseline(&self) -> Result<Baseline, SandboxError> {
        let mut stats = self.read_stats().await?;
        if stats.processes.is_none() {
            stats.processes = self.count_processes().await;
        }
        Ok(Baseline { stats, mark: self.egress.as_ref().map(Egress::mark) })
    }

    /// Returns the number of processes besides the guest, as the guest reports it, for hosts that cannot
    /// count them.
    async fn count_processes(&self) -> Option<u64> {
        let page = self.files().list("/proc", None, 8).await.ok()?;
        let is_process = |entry: &&DirectoryEntry| entry.name.bytes().all(|byte| byte.is_ascii_digit());
        (page.entries.iter().filter(is_process).count() as u64).checked_sub(1)
    }

    /// Returns the denied system calls of these commands, or of all if `None`.
    async fn denied_calls(&self, commands: Option<&[u32]>) -> Result<Denials, SandboxError> {
        let mut kept = Denials::default();
        if let JailResponse::Calls(calls) = self.query(JailRequest::Calls).await? {
            let theirs =
                calls.into_iter().filter(|(whose, _)| commands.is_none_or(|all| all.contains(whose)));
            theirs.for_each(|(_, call)| kept.add(call));
        }
        Ok(kept)
    }

    /// Returns the denied system calls of these commands. Their pids inside are fetched only if there are any
    /// denials.
    pub(super) async fn denied_calls_of(&self, commands: &[ProcessId]) -> Result<Denials, SandboxError> {
        if self.denied_calls(None).await?.calls.is_empty() || self.guest_client.running_guest().is_err() {
            return Ok(Denials::default());
        }
        let all = self.guest_client.convert_result(self.guest_client.guest.processes().await).await?;
        let theirs = all.iter().filter(|info| commands.contains(&info.id)).map(|info| info.pid);
        self.denied_calls(Some(&theirs.collect::<Vec<_>>())).await
    }

    /// Adds what the counters of the whole sandbox recorded since then.
    pub(super) fn add_counted(&self, kept: &mut Denials, before: &Baseline, now: &SandboxStats) {
        kept.forks_refused = now.forks_refused.saturating_sub(before.stats.forks_refused);
        kept.memory_kills = now.memory_kills.saturating_sub(before.stats.memory_kills);
        kept.disk_full = now.disk_full && !before.stats.disk_full;
    }

    /// Returns findings on hosts that were refused since then.
    pub(super) fn refused_hosts(&self, before: &Baseline) -> Vec<Finding> {
        let egress = self.egress.as_ref().zip(before.mark.as_ref());
        egress.map(|(egress, mark)| egress.findings_since(mark)).unwrap_or_default()
    }

    pub(super) async fn command_denials(&self, command: &ProcessInfo) -> Result<Vec<Finding>, SandboxError> {
        let mut kept = self.denied_calls(Some(&[command.pid])).await?;
        let mut hosts = Vec::new();
        if let Some(before) = self.starts.baseline_of(command.id) {
            let (now, refused) = (self.read_stats().await?, self.refused_hosts(&before));
            // Count them only if nothing was started meanwhile, which could be the cause.
            if self.starts.baseline_of(command.id).is_some() {
                self.add_counted(&mut kept, &before, &now);
                hosts = refused;
            }
        }
        let mut findings = explain::denial_findings(&kept, Ending::Exited(0), &self.checked_plan.plan.limits);
        findings.extend(hosts);
        Ok(findings)
    }

    pub(super) async fn sandbox_denials(&self) -> Result<Vec<Finding>, SandboxError> {
        let mut kept = self.denied_calls(None).await?;
        let SandboxStats { forks_refused, memory_kills, disk_full, .. } = self.read_stats().await?;
        kept = Denials { forks_refused, memory_kills, disk_full, ..kept };
        let mut findings = explain::denial_findings(&kept, Ending::Exited(0), &self.checked_plan.plan.limits);
        findings.extend(self.egress.iter().flat_map(Egress::findings));
        Ok(findings)
    }
}

/// A running task and the sandbox's counters before it.
#[derive(Debug)]
pub(super) struct TaskDenials<'a> {
    pub(super) living: &'a NativeLiving,
    pub(super) start: PendingStart<'a>,
    pub(super) before: Baseline,
}

impl DenialFindings for TaskDenials<'_> {
    fn findings<'a>(
        &'a self,
        commands: &'a [ProcessId],
        now: &'a SandboxStats,
        ending: Ending,
    ) -> SandboxFuture<'a, Vec<Finding>> {
        Box::pin(async move {
            let mut kept = self.living.denied_calls_of(commands).await?;
            let alone = self.start.is_exclusive(&self.before);
            if alone {
                self.living.add_counted(&mut kept, &self.before, now);
            }
            let mut findings = explain::denial_findings(&kept, ending, &self.living.checked_plan.plan.limits);
            if alone {
                findings.extend(self.living.refused_hosts(&self.before));
            }
            Ok(findings)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn before(processes: Option<u64>) -> Baseline {
        Baseline { stats: SandboxStats { processes, ..SandboxStats::default() }, mark: None }
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
        assert!(task.is_exclusive(&before(Some(0))));
        starts.begin().finish(ProcessId(6), before(Some(0)));
        assert!(
            !task.is_exclusive(&before(Some(0))) && !alone(6),
            "a task counts as running until it is dropped"
        );
        drop(task);
        starts.begin().finish(ProcessId(7), before(Some(0)));
        assert!(alone(7));
        drop(starts.begin());
        assert!(!alone(7), "a failed start may have run for a moment");
    }
}
