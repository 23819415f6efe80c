//! Which process the kernel kills first when memory runs out: rather a program than PID 1, which would take all others
//! with it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

const OWN: &str = "/proc/self/oom_score_adj";
const RAISE: i32 = 500;
const MOST: i32 = 1000;

/// This process's own score, which its children start with.
#[derive(Debug)]
pub(super) struct OomScore(Option<(File, i32)>);

impl OomScore {
    /// Where it cannot be written, everybody has the same.
    pub(super) fn open(inherited: Option<OwnedFd>) -> Self {
        Self(try_open(inherited))
    }

    /// Children of this moment have a higher one. Lowering it again needs no right: it is what it was.
    pub(super) fn while_raised<T>(&self, start: impl FnOnce() -> T) -> T {
        self.set(RAISE);
        let started = start();
        self.set(0);
        started
    }

    fn set(&self, raise: i32) {
        if let Some((file, own)) = &self.0 {
            let score = (own + raise).min(MOST).max(*own).to_string();
            let _best_effort = file.write_at(score.as_bytes(), 0);
        }
    }
}

fn try_open(inherited: Option<OwnedFd>) -> Option<(File, i32)> {
    let own = std::fs::read_to_string(OWN).ok()?.trim().parse().ok()?;
    let file = match inherited {
        Some(inherited) => File::from(inherited),
        None => File::options().write(true).open(OWN).ok()?,
    };
    Some((file, own))
}
