//! Sandboxes, the jails that stay until they are closed: the state that the launcher keeps for one, and
//! queries about it.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::{Mode, OFlags};

use super::home::Home;
use super::pausing::Pausing;
use super::run::Run;
use crate::cgroup::{Group, MemoryEvents};
use crate::spec::{Answer, Ask, Ending, Stats};

/// The additional state of a run that is a sandbox.
pub(super) struct Life {
    /// Its disk, once the guest runs.
    disk: Option<OwnedFd>,
    pub(super) pausing: Pausing,
    /// The ending to report, if the launcher killed it.
    pub(super) doom: Option<Ending>,
    /// The out-of-memory events at the last query.
    memory: Option<MemoryEvents>,
    /// How many processes were killed although the sandbox was below its own memory limit.
    machine_memory_kills: u64,
}

impl Life {
    pub(super) fn new(now: Instant) -> Self {
        let pausing = Pausing::new(now);
        Self { disk: None, pausing, doom: None, memory: None, machine_memory_kills: 0 }
    }

    /// Closes the disk before the sandbox's processes do, so that the launcher does not have to free what is
    /// on it.
    pub(super) fn close_disk(&mut self) {
        self.disk = None;
    }

    /// Opens the disk, once the guest runs. Whatever the tenant does, `/tmp` is the mount that the launcher's
    /// side made.
    pub(super) fn settle(&mut self, home: &Home, pid: i32) {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.disk = rustix::fs::openat(&home.proc, format!("{pid}/root/tmp"), flags, Mode::empty()).ok();
    }

    /// Returns how it ended, from the wait status of its PID 1.
    pub(super) fn ending(&self, status: i32, out_of_memory: Option<Ending>) -> Ending {
        match self.doom {
            Some(ending) => ending,
            None if libc::WIFEXITED(status) => Ending::Exited(libc::WEXITSTATUS(status) as u8),
            None => out_of_memory.unwrap_or(Ending::Signalled(libc::WTERMSIG(status))),
        }
    }

    fn stats(&mut self, group: Option<&Group>) -> Stats {
        let disk = self.disk.as_ref().and_then(|disk| rustix::fs::fstatfs(disk).ok());
        let usage = group.map(Group::usage).unwrap_or_default();
        let memory = group.map(Group::memory_events).unwrap_or_default();
        let before =
            self.memory.replace(memory).or(group.map(Group::memory_events_before)).unwrap_or_default();
        self.machine_memory_kills += memory.machine_kills_since(&before);
        Stats {
            cpu: usage.cpu,
            memory_bytes: group.and_then(Group::memory),
            peak_memory_bytes: usage.peak_memory_bytes,
            // Without PID 1, which is the guest.
            processes: group.and_then(Group::processes).map(|all| all.saturating_sub(1)),
            peak_processes: usage.peak_processes.map(|all| all.saturating_sub(1)),
            disk_bytes: disk.map(|disk| (disk.f_blocks - disk.f_bfree) * disk.f_bsize as u64),
            memory_kills: memory.kills.saturating_sub(self.machine_memory_kills),
            machine_memory_kills: self.machine_memory_kills,
            forks_refused: group.map_or(0, Group::forks_refused),
            disk_full: disk.is_some_and(|disk| disk.f_bfree == 0 || disk.f_ffree == 0),
        }
    }
}

/// Answers a query about a sandbox. `None` if the answer comes later.
pub(super) fn answer(run: Option<&mut Run>, question: u64, what: Ask) -> Option<Answer> {
    let Some(run) = run.filter(|run| run.is_living()) else { return Some(Answer::Gone) };
    let asked = |run: &mut Run, ask: fn(&mut Life, u64, Option<&Group>) -> Option<Answer>| {
        run.life().map_or(Some(Answer::Gone), |(life, group)| ask(life, question, group))
    };
    match what {
        Ask::Layers => Some(Answer::Layers(run.layers().to_vec())),
        Ask::Calls => Some(Answer::Calls(run.ear.refused().to_vec())),
        Ask::Stats => asked(run, |life, _, group| Some(Answer::Stats(life.stats(group)))),
        Ask::Pause => asked(run, |life, question, _| life.pausing.ask(question, true)),
        Ask::Resume => asked(run, |life, question, _| life.pausing.ask(question, false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_it_ended_is_told_by_its_first_process() {
        let life = Life::new(Instant::now());
        assert_eq!(life.ending(3 << 8, Some(Ending::Memory)), Ending::Exited(3));
        assert_eq!(life.ending(libc::SIGKILL, Some(Ending::Memory)), Ending::Memory);
        assert_eq!(life.ending(libc::SIGKILL, None), Ending::Signalled(libc::SIGKILL));
        let closed = Life { doom: Some(Ending::Killed), ..Life::new(Instant::now()) };
        assert_eq!(closed.ending(libc::SIGKILL, Some(Ending::Memory)), Ending::Killed);
    }
}
