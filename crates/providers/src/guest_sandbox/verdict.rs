//! Which limit ended a task. The guest says how its program ended; the counters of the sandbox, before and
//! after, say whether a limit was hit meanwhile, which counts if the program failed.

use belljar_engine::outcome::{Ending, Limit};
use belljar_engine::provider::ProviderError;
use belljar_engine::sandbox_handle::SandboxStats;

const SIGKILL: i32 = 9;
const SIGXFSZ: i32 = 25;

/// The counters around a task, and what else the verdict depends on.
#[derive(Debug)]
pub(super) struct Counters<'a> {
    pub(super) before: &'a SandboxStats,
    pub(super) after: &'a SandboxStats,
    /// Whether the sandbox was halted because a volume exceeds its limit.
    pub(super) halted: bool,
    /// Whether every killed process belonged to the task.
    pub(super) single_task: bool,
}

impl Counters<'_> {
    /// Returns how a task ended, with the limit that it hit.
    ///
    /// # Errors
    /// Fails if the task failed while a process was killed because memory outside the sandbox's own limit ran
    /// out.
    pub(super) fn ending(&self, ending: Ending) -> Result<Ending, ProviderError> {
        let Self { before, after, halted, single_task } = *self;
        let machine_kill = after.machine_memory_kills > before.machine_memory_kills;
        let memory_kill = after.memory_kills > before.memory_kills;
        let limit_hit = |limit, status| Ok(Ending::LimitHit(limit, status));
        match ending {
            Ending::Signalled(SIGKILL) | Ending::Exited(1..) if machine_kill => {
                Err(ProviderError::SandboxMemoryExhausted)
            }
            Ending::Signalled(SIGKILL) if halted => limit_hit(Limit::Disk, None),
            Ending::Signalled(SIGKILL) | Ending::Exited(1..) if memory_kill => limit_hit(Limit::Memory, None),
            Ending::Exited(0) if memory_kill && single_task => limit_hit(Limit::Memory, None),
            Ending::Signalled(SIGXFSZ) => limit_hit(Limit::Disk, None),
            Ending::Exited(status @ 1..) if after.disk_full => limit_hit(Limit::Disk, Some(status)),
            Ending::Exited(status @ 1..) if after.forks_refused > before.forks_refused => {
                limit_hit(Limit::Processes, Some(status))
            }
            ending => Ok(ending),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(after: SandboxStats, halted: bool, single_task: bool, ending: Ending) -> Option<Ending> {
        let before = SandboxStats::default();
        Counters { before: &before, after: &after, halted, single_task }.ending(ending).ok()
    }

    #[test]
    fn a_limit_counts_if_the_task_failed() {
        let (memory, disk) = (Ending::LimitHit(Limit::Memory, None), Ending::LimitHit(Limit::Disk, Some(1)));
        let (done, failed, killed) = (Ending::Exited(0), Ending::Exited(1), Ending::Signalled(SIGKILL));
        let kill = SandboxStats { memory_kills: 1, ..SandboxStats::default() };
        assert_eq!(
            [done, failed, killed].map(|it| ending(kill, false, false, it)),
            [Some(done), Some(memory), Some(memory)]
        );
        assert_eq!(ending(kill, false, true, done), Some(memory), "the process was the task's");
        let full = SandboxStats { disk_full: true, forks_refused: 1, ..SandboxStats::default() };
        assert_eq!([done, failed].map(|it| ending(full, false, true, it)), [Some(done), Some(disk)]);
        let refused = SandboxStats { forks_refused: 1, ..SandboxStats::default() };
        let processes = Ending::LimitHit(Limit::Processes, Some(1));
        assert_eq!(ending(refused, false, true, failed), Some(processes));
        let volume = Ending::LimitHit(Limit::Disk, None);
        assert_eq!(ending(kill, true, false, killed), Some(volume), "the sandbox was halted");
        let machine = SandboxStats { machine_memory_kills: 1, ..SandboxStats::default() };
        assert_eq!([failed, done].map(|it| ending(machine, false, true, it)), [None, Some(done)]);
    }
}
