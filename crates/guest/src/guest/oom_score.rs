//! OOM scores: when memory runs out, the kernel should kill a program rather than PID 1, whose end kills all
//! processes.
//!
//! The guest raises its own score while it starts a process, which inherits the raised one.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

const OWN: &str = "/proc/self/oom_score_adj";
const RAISE: i32 = 300;
const MAX_SCORE: i32 = 1000;

/// This process's own score, which its children inherit.
#[derive(Debug)]
pub(super) struct OomScore(Option<File>);

impl OomScore {
    /// Opens the score file. If it is not writable, all processes have the same score.
    pub(super) fn open(inherited: Option<OwnedFd>) -> Self {
        Self(try_open(inherited))
    }

    /// Runs `start` with a raised score, which children started by it inherit. Lowering it again needs no
    /// privilege, because it only returns to its previous value. Reads the score each time, because the host
    /// may have changed it.
    pub(super) fn with_raised_score<T>(&self, start: impl FnOnce() -> T) -> T {
        let own = own();
        self.set(own.map(|own| (own + RAISE).min(MAX_SCORE).max(own)));
        let started = start();
        self.set(own);
        started
    }

    fn set(&self, score: Option<i32>) {
        if let Some((file, score)) = self.0.as_ref().zip(score) {
            let _best_effort = file.write_at(score.to_string().as_bytes(), 0);
        }
    }
}

fn own() -> Option<i32> {
    std::fs::read_to_string(OWN).ok()?.trim().parse().ok()
}

fn try_open(inherited: Option<OwnedFd>) -> Option<File> {
    match inherited {
        Some(inherited) => Some(File::from(inherited)),
        None => File::options().write(true).open(OWN).ok(),
    }
}
