//! Patience with parsers. None of them can be interrupted, and which code makes one of them try everything twice at every level
//! cannot be known of all. So they work in threads that are kept for the purpose, and one that takes too long is left to
//! itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Honest code takes a hundredth of this.
const PATIENCE: Duration = Duration::from_secs(if cfg!(debug_assertions) { 30 } else { 3 });

/// So many may be left to themselves at one time; then no code is read until one of them ends.
const MAX_ABANDONED: usize = 2;

/// So many wait for work.
const MAX_IDLE: usize = 8;

static ABANDONED: AtomicUsize = AtomicUsize::new(0);
static IDLE: Mutex<Vec<Sender<Job>>> = Mutex::new(Vec::new());

type Job = Box<dyn FnOnce() + Send>;

/// Does some work, and gives up on it when it takes too long.
pub(crate) fn patiently<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if ABANDONED.load(Ordering::Relaxed) >= MAX_ABANDONED {
        return None;
    }
    let (tell, told) = mpsc::channel();
    hand(Box::new(move || {
        if tell.send(work()).is_err() {
            ABANDONED.fetch_sub(1, Ordering::Relaxed);
        }
    }))?;
    let answer = told.recv_timeout(PATIENCE);
    if let Err(mpsc::RecvTimeoutError::Timeout) = answer {
        ABANDONED.fetch_add(1, Ordering::Relaxed);
    }
    answer.ok()
}

/// Hands work to whoever waits for it, or to somebody new.
fn hand(job: Job) -> Option<()> {
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let worker = match idle {
        Some(worker) => worker,
        None => start()?,
    };
    worker.send(job).ok()
}

fn start() -> Option<Sender<Job>> {
    let (worker, jobs) = mpsc::channel::<Job>();
    let own = worker.clone();
    let work = move || {
        while let Ok(job) = jobs.recv() {
            job();
            let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() >= MAX_IDLE {
                return;
            }
            idle.push(own.clone());
        }
    };
    thread::Builder::new().name("reader".to_owned()).spawn(work).ok().map(|_| worker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_by_threads_that_are_kept() {
        let names: Vec<_> = (0..20).map(|_| patiently(|| thread::current().id())).collect();
        assert!(names.iter().all(Option::is_some));
        let different: std::collections::HashSet<_> = names.into_iter().collect();
        assert!(different.len() <= 4, "{different:?}");
    }
}
