//! Which processes the kernel kills first when memory runs out: those of sandboxes before everything else on the machine, and
//! among sandboxes those of a tenant above its share.
//!
//! The kernel picks the process with the most memory, and counts each point of `oom_score_adj` as a thousandth of what all
//! sandboxes may have. A tenant within its share has at most half of that, so a process above the share comes first wherever
//! its score is more than 500 higher.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::home::Home;
use crate::cgroup::Group;

/// Whether a tenant uses more than its share of the memory that all sandboxes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Standing {
    #[default]
    WithinShare,
    AboveShare,
}

/// The scores of one jail's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OomScores {
    /// Of the process with which the jail ends: PID 1, or the program of a warm run.
    pub(super) main: u32,
    /// Of all other processes.
    pub(super) others: u32,
}

/// How much lower the score of a guest is than that of its programs, which it raises by this itself.
const GUEST_LOWER: u32 = 300;
/// With more processes than this in a jail only its main one has its score changed, which is enough to end it.
const MOST_CHANGED: u64 = 128;

impl OomScores {
    pub(super) fn of(standing: Standing, living: bool) -> Self {
        let others = match standing {
            Standing::WithinShare => 400,
            Standing::AboveShare => 1_000,
        };
        Self { main: if living { others - GUEST_LOWER } else { others }, others }
    }

    /// Gives all processes of a jail these scores; says how many processes were looked at. What they start has the same.
    pub(super) fn apply(&self, home: &Home, main: i32, group: Option<&Group>) -> usize {
        set_oom_score(home, main, self.main);
        let few = |group: &&Group| group.processes().is_some_and(|count| count <= MOST_CHANGED);
        let Some(group) = group.filter(few) else { return 1 };
        let others: Vec<i32> = group.members().into_iter().filter(|pid| *pid != main).collect();
        if others.is_empty() {
            return 1;
        }
        // A number may be another process's by now: what was opened is written to only where it is still a member after that.
        let opened: Vec<_> = others.iter().map(|pid| (*pid, open_oom_score(home, *pid))).collect();
        let members = group.members();
        for (_, score) in opened.into_iter().filter(|(pid, _)| members.contains(pid)) {
            write_score(score, self.others);
        }
        1 + others.len()
    }
}

/// Sets how soon the kernel ends a process of ours, and everything that it starts, when memory runs out.
pub(super) fn set_oom_score(home: &Home, pid: i32, score: u32) {
    write_score(open_oom_score(home, pid), score);
}

/// Opens the score of a process for writing.
pub(super) fn open_oom_score(home: &Home, pid: i32) -> Result<OwnedFd, Errno> {
    let path = format!("{pid}/oom_score_adj");
    openat(&home.proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

fn write_score(file: Result<OwnedFd, Errno>, score: u32) {
    // Where this is refused the process keeps the score of the one that started it.
    let _set = file.and_then(|file| rustix::io::write(&file, score.to_string().as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn above_the_share_goes_before_half_of_everything_within_it() {
        for living in [false, true] {
            let within = OomScores::of(Standing::WithinShare, living);
            let above = OomScores::of(Standing::AboveShare, living);
            assert!(above.others > within.others + 500 && above.others <= 1_000);
            assert!(within.main > 0, "sandboxes go before the rest of the machine");
            assert_eq!(within.main < within.others, living, "programs go before their guest");
            assert_eq!(above.main < above.others, living, "programs go before their guest");
        }
    }
}
