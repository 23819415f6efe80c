//! What commands of a living sandbox are kept from, and whose doing it was.
//!
//! The filter knows who made a call. Counters and the way out know the sandbox only: what they saw is a command's where
//! nobody else was there from before its start until now, and otherwise nobody's.

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

/// What is started in one sandbox.
#[derive(Debug, Default)]
pub(super) struct Starts(Mutex<Started>);

#[derive(Debug, Default)]
struct Started {
    begun: u64,
    done: u64,
    /// The last one, where nobody else was there.
    alone: Option<(ProcessId, Arc<Before>)>,
}

/// How the sandbox stood before something was started in it.
#[derive(Debug)]
pub(super) struct Before {
    pub(super) stats: Stats,
    mark: Option<Mark>,
}

/// Something that is being started. Until this is dropped, nobody else is alone.
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

    /// How it was before a command that has been alone since.
    fn before(&self, command: ProcessId) -> Option<Arc<Before>> {
        self.lock().alone.clone().filter(|(alone, _)| *alone == command).map(|(_, before)| before)
    }

    fn lock(&self) -> MutexGuard<'_, Started> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Start<'_> {
    /// Whether nobody else was there before, nor has come since.
    pub(super) fn is_alone(&self, before: &Before) -> bool {
        !self.crowded && before.stats.processes == Some(0) && self.starts.lock().begun == self.number
    }

    /// It is a command now.
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
    /// How it stands.
    pub(super) async fn before(&self) -> Result<Before, LivingError> {
        let mut stats = self.take_stats().await?;
        if stats.processes.is_none() {
            stats.processes = self.others().await;
        }
        Ok(Before { stats, mark: self.egress.as_ref().map(Egress::mark) })
    }

    /// How many processes there are beside the guest, by its word, where nobody outside counts them.
    async fn others(&self) -> Option<u64> {
        let page = self.files().list("/proc", None, 8).await.ok()?;
        let is_process = |entry: &&Entry| entry.name.bytes().all(|byte| byte.is_ascii_digit());
        (page.entries.iter().filter(is_process).count() as u64).checked_sub(1)
    }

    /// The calls that were refused to these commands; to everybody, where none is named.
    async fn refused(&self, commands: Option<&[u32]>) -> Result<Kept, LivingError> {
        let mut kept = Kept::default();
        if let Answer::Calls(calls) = self.ask(Ask::Calls).await? {
            let theirs =
                calls.into_iter().filter(|(whose, _)| commands.is_none_or(|all| all.contains(whose)));
            theirs.for_each(|(_, call)| kept.add(call_of(call)));
        }
        Ok(kept)
    }

    /// What these commands were refused. Their numbers inside are asked for only where anybody was refused anything.
    pub(super) async fn refused_to(&self, commands: &[ProcessId]) -> Result<Kept, LivingError> {
        if self.refused(None).await?.calls.is_empty() || self.inside.awake().is_err() {
            return Ok(Kept::default());
        }
        let all = self.inside.told(self.inside.guest.processes().await).await?;
        let theirs = all.iter().filter(|info| commands.contains(&info.id)).map(|info| info.pid);
        self.refused(Some(&theirs.collect::<Vec<_>>())).await
    }

    /// Adds what was counted since, of the sandbox as a whole.
    pub(super) fn add_counted(&self, kept: &mut Kept, before: &Before, now: &Stats) {
        kept.forks_refused = now.forks_refused.saturating_sub(before.stats.forks_refused);
        kept.memory_kills = now.memory_kills.saturating_sub(before.stats.memory_kills);
        kept.disk_full = now.disk_full && !before.stats.disk_full;
    }

    /// The hosts that were out of reach since.
    pub(super) fn hosts_refused(&self, before: &Before) -> Vec<Finding> {
        let egress = self.egress.as_ref().zip(before.mark.as_ref());
        egress.map(|(egress, mark)| egress.findings_since(mark)).unwrap_or_default()
    }

    pub(super) async fn kept_from_command(&self, command: &ProcessInfo) -> Result<Vec<Finding>, LivingError> {
        let mut kept = self.refused(Some(&[command.pid])).await?;
        let mut hosts = Vec::new();
        if let Some(before) = self.starts.before(command.id) {
            let (now, refused) = (self.take_stats().await?, self.hosts_refused(&before));
            // Whoever came meanwhile may have been the reason.
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

/// A task, and how the sandbox stood before it.
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
        assert!(!alone(1) && !alone(2), "the first one still ran");
        starts.begin().done(ProcessId(3), before(None));
        assert!(!alone(3), "where nobody counts, nobody knows");
        let (one, other) = (starts.begin(), starts.begin());
        one.done(ProcessId(4), before(Some(0)));
        other.done(ProcessId(5), before(Some(0)));
        assert!(!alone(4) && !alone(5), "both started at once");
        let task = starts.begin();
        assert!(task.is_alone(&before(Some(0))));
        starts.begin().done(ProcessId(6), before(Some(0)));
        assert!(!task.is_alone(&before(Some(0))) && !alone(6), "a task is there until it is over");
        drop(task);
        starts.begin().done(ProcessId(7), before(Some(0)));
        assert!(alone(7));
        drop(starts.begin());
        assert!(!alone(7), "what could not be started may have been there for a moment");
    }
}
