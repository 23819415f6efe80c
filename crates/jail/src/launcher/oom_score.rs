//! OOM scores: which processes the kernel kills first when memory runs out. Processes of jails come before
//! everything else on the machine, and among jails, those of a tenant above its share.
//!
//! The kernel picks the process with the most memory, and counts each point of `oom_score_adj` as a
//! thousandth of the memory for all jails. A tenant within its share has at most half of that, so a process
//! above the share comes first if its score is more than 500 higher.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::setup::LauncherContext;
use crate::cgroup::Group;

/// Whether a tenant uses more than its share of the memory for all jails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Standing {
    #[default]
    WithinShare,
    AboveShare,
}

/// The scores of one jail's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OomScores {
    /// For the process with which the jail ends: PID 1, or the program of a warm run.
    pub(super) main: u32,
    /// For all other processes.
    pub(super) others: u32,
}

/// How much lower the score of a guest is than that of its programs. The guest itself raises theirs by this
/// amount.
const GUEST_SCORE_OFFSET: u32 = 300;
/// In a jail with more processes than this, only the score of the main process is changed, which is enough to
/// end the jail.
const MAX_MEMBERS_SCORED: u64 = 128;

impl OomScores {
    pub(super) fn for_standing(standing: Standing, is_sandbox: bool) -> Self {
        let others = match standing {
            Standing::WithinShare => 400,
            Standing::AboveShare => 1_000,
        };
        Self { main: if is_sandbox { others - GUEST_SCORE_OFFSET } else { others }, others }
    }

    /// Sets these scores for all processes of a jail; processes that they start inherit them. Returns how
    /// many processes were looked at.
    pub(super) fn apply(&self, context: &LauncherContext, main: i32, group: Option<&Group>) -> usize {
        set_oom_score(context, main, self.main);
        let few = |group: &&Group| group.process_count().is_some_and(|count| count <= MAX_MEMBERS_SCORED);
        let Some(group) = group.filter(few) else { return 1 };
        let others: Vec<i32> = group.members().into_iter().filter(|pid| *pid != main).collect();
        if others.is_empty() {
            return 1;
        }
        // A pid may have been reused by now. So a score is written only if the pid is still a member after
        // the file was opened.
        let opened: Vec<_> = others.iter().map(|pid| (*pid, open_oom_score(context, *pid))).collect();
        let members = group.members();
        for (_, score) in opened.into_iter().filter(|(pid, _)| members.contains(pid)) {
            write_score(score, self.others);
        }
        1 + others.len()
    }
}

/// Sets the OOM score of a process, which everything that it starts inherits.
pub(super) fn set_oom_score(context: &LauncherContext, pid: i32, score: u32) {
    write_score(open_oom_score(context, pid), score);
}

/// Opens the OOM score of a process for writing.
pub(super) fn open_oom_score(context: &LauncherContext, pid: i32) -> Result<OwnedFd, Errno> {
    let path = format!("{pid}/oom_score_adj");
    openat(&context.proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

fn write_score(file: Result<OwnedFd, Errno>, score: u32) {
    // If this is refused, the process keeps the score that it inherited.
    let _set = file.and_then(|file| rustix::io::write(&file, score.to_string().as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_above_the_share_outrank_those_within() {
        for is_sandbox in [false, true] {
            let within = OomScores::for_standing(Standing::WithinShare, is_sandbox);
            let above = OomScores::for_standing(Standing::AboveShare, is_sandbox);
            assert!(above.others > within.others + 500 && above.others <= 1_000);
            assert!(within.main > 0, "jails are killed before the rest of the machine");
            assert_eq!(within.main < within.others, is_sandbox, "programs are killed before their guest");
            assert_eq!(above.main < above.others, is_sandbox, "programs are killed before their guest");
        }
    }
}
