//! Which denials belong to which command of a sandbox.
//!
//! The seccomp listener knows which process made a call. Counters and egress know only the sandbox: what they
//! recorded is attributed to a command if nothing else ran from before its start until now, and otherwise to
//! no command.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_egress::{Egress, Mark};
use belljar_engine::explain::{self, Kept};
use belljar_engine::finding::Finding;
use belljar_engine::living::{Asked, Entry, Living, LivingError, ProcessId, ProcessInfo, Stats};
use belljar_engine::outcome::Ending;
use belljar_jail::spec::{Answer, Ask};

use super::NativeLiving;
use crate::inside::task::Notes;
use crate::native::attend::call_of;

/// The commands being started in one sandbox.
#[derive(Debug, Default)]
pub(super) struct Starts(Mutex<Started>);

#[derive(Debug, Default)]
struct Started {
    begun: u64,
    done: u64,
    /// The latest command, if nothing else has run since before its start.
    alone: Option<(ProcessId, Arc<Before>)>,
}

/// The sandbox's counters before a command or task was started.
#[derive(Debug)]
pub(super) struct Before {
    pub(super) stats: Stats,
    mark: Option<Mark>,
}

/// A command that is being started. Until this is dropped, no other command is exclusive.
#[derive(Debug)]
pub(super) struct Start<'a> {
    starts: &'a Starts,
    number: u64,
    crowded: bool,
}

impl Starts {
    pub(super) fn begin(&self) -> Start<'_> {
        let mut started = self.lock();
        started.begun += 1;
        started.alone = None;
        Start { starts: self, number: started.begun, crowded: started.begun != started.done + 1 }
    }

    /// Returns the counters from before a command that has been exclusive since its start.
    fn before(&self, command: ProcessId) -> Option<Arc<Before>> {
        self.lock().alone.clone().filter(|(alone, _)| *alone == command).map(|(_, before)| before)
    }

    fn lock(&self) -> MutexGuard<'_, Started> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Start<'_> {
    /// Returns whether nothing else ran before, and nothing has been started since.
    pub(super) fn is_alone(&self, before: &Before) -> bool {
        !self.crowded && before.stats.processes == Some(0) && self.starts.lock().begun == self.number
    }

    /// Records that the command was started.
    pub(super) fn done(self, command: ProcessId, before: Before) {
        if self.is_alone(&before) {
            self.starts.lock().alone = Some((command, Arc::new(before)));
        }
    }
}

impl Drop for Start<'_> {
    fn drop(&mut self) {
        self.starts.lock().done += 1;
    }
}

impl NativeLiving {
    /// Returns the current counters.
    pub(super) async fn before(&self) -> Result<Before, LivingError> {
        let mut stats = self.take_stats().await?;
        if stats.processes.is_none() {
            stats.processes = self.others().await;
        }
        Ok(Before { stats, mark: self.egress.as_ref().map(Egress::mark) })
    }

    /// Returns the number of processes besides the guest, as the guest reports it, for hosts that cannot
    /// count them.
    async fn others(&self) -> Option<u64> {
        let page = self.files().list("/proc", None, 8).await.ok()?;
        let is_process = |entry: &&Entry| entry.name.bytes().all(|byte| byte.is_ascii_digit());
        (page.entries.iter().filter(is_process).count() as u64).checked_sub(1)
    }

    /// Returns the denied system calls of these commands, or of all if `None`.
    async fn refused(&self, commands: Option<&[u32]>) -> Result<Kept, LivingError> {
        let mut kept = Kept::default();
        if let Answer::Calls(calls) = self.ask(Ask::Calls).await? {
            let theirs =
                calls.into_iter().filter(|(whose, _)| commands.is_none_or(|all| all.contains(whose)));
            theirs.for_each(|(_, call)| kept.add(call_of(call)));
        }
        Ok(kept)
    }

    /// Returns the denied system calls of these commands. Their pids inside are fetched only if there are any
    /// denials.
    pub(super) async fn refused_to(&self, commands: &[ProcessId]) -> Result<Kept, LivingError> {
        if self.refused(None).await?.calls.is_empty() || self.inside.awake().is_err() {
            return Ok(Kept::default());
        }
        let all = self.inside.told(self.inside.guest.processes().await).await?;
        let theirs = all.iter().filter(|info| commands.contains(&info.id)).map(|info| info.pid);
        self.refused(Some(&theirs.collect::<Vec<_>>())).await
    }

    /// Adds what the counters of the whole sandbox recorded since then.
    pub(super) fn add_counted(&self, kept: &mut Kept, before: &Before, now: &Stats) {
        kept.forks_refused = now.forks_refused.saturating_sub(before.stats.forks_refused);
        kept.memory_kills = now.memory_kills.saturating_sub(before.stats.memory_kills);
        kept.disk_full = now.disk_full && !before.stats.disk_full;
    }

    /// Returns findings on hosts that were refused since then.
    pub(super) fn hosts_refused(&self, before: &Before) -> Vec<Finding> {
        let egress = self.egress.as_ref().zip(before.mark.as_ref());
        egress.map(|(egress, mark)| egress.findings_since(mark)).unwrap_or_default()
    }

    pub(super) async fn kept_from_command(&self, command: &ProcessInfo) -> Result<Vec<Finding>, LivingError> {
        let mut kept = self.refused(Some(&[command.pid])).await?;
        let mut hosts = Vec::new();
        if let Some(before) = self.starts.before(command.id) {
            let (now, refused) = (self.take_stats().await?, self.hosts_refused(&before));
            // Count them only if nothing was started meanwhile, which could be the cause.
            if self.starts.before(command.id).is_some() {
                self.add_counted(&mut kept, &before, &now);
                hosts = refused;
            }
        }
        let mut findings = explain::findings(&kept, Ending::Exited(0), &self.place.plan.limits);
        findings.extend(hosts);
        Ok(findings)
    }

    pub(super) async fn kept_from_anything(&self) -> Result<Vec<Finding>, LivingError> {
        let mut kept = self.refused(None).await?;
        let Stats { forks_refused, memory_kills, disk_full, .. } = self.take_stats().await?;
        kept = Kept { forks_refused, memory_kills, disk_full, ..kept };
        let mut findings = explain::findings(&kept, Ending::Exited(0), &self.place.plan.limits);
        findings.extend(self.egress.iter().flat_map(Egress::findings));
        Ok(findings)
    }
}

/// A running task and the sandbox's counters before it.
#[derive(Debug)]
pub(super) struct Noted<'a> {
    pub(super) living: &'a NativeLiving,
    pub(super) start: Start<'a>,
    pub(super) before: Before,
}

impl Notes for Noted<'_> {
    fn findings<'a>(
        &'a self,
        commands: &'a [ProcessId],
        now: &'a Stats,
        ending: Ending,
    ) -> Asked<'a, Vec<Finding>> {
        Box::pin(async move {
            let mut kept = self.living.refused_to(commands).await?;
            let alone = self.start.is_alone(&self.before);
            if alone {
                self.living.add_counted(&mut kept, &self.before, now);
            }
            let mut findings = explain::findings(&kept, ending, &self.living.place.plan.limits);
            if alone {
                findings.extend(self.living.hosts_refused(&self.before));
            }
            Ok(findings)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn before(processes: Option<u64>) -> Before {
        Before { stats: Stats { processes, ..Stats::default() }, mark: None }
    }

    #[test]
    fn only_who_is_alone_from_before_its_start_is_told_of_what_was_counted() {
        let starts = Starts::default();
        let alone = |id| starts.before(ProcessId(id)).is_some();
        starts.begin().done(ProcessId(1), before(Some(0)));
        assert!(alone(1));
        starts.begin().done(ProcessId(2), before(Some(1)));
        assert!(!alone(1) && !alone(2), "the first command was still running");
        starts.begin().done(ProcessId(3), before(None));
        assert!(!alone(3), "the number of processes is unknown");
        let (one, other) = (starts.begin(), starts.begin());
        one.done(ProcessId(4), before(Some(0)));
        other.done(ProcessId(5), before(Some(0)));
        assert!(!alone(4) && !alone(5), "both were started at once");
        let task = starts.begin();
        assert!(task.is_alone(&before(Some(0))));
        starts.begin().done(ProcessId(6), before(Some(0)));
        assert!(
            !task.is_alone(&before(Some(0))) && !alone(6),
            "a task counts as running until it is dropped"
        );
        drop(task);
        starts.begin().done(ProcessId(7), before(Some(0)));
        assert!(alone(7));
        drop(starts.begin());
        assert!(!alone(7), "a failed start may have run for a moment");
    }
}
