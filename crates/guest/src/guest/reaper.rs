//! Waiting for children, in one place: those that somebody expects are told of, and orphans are merely let go. Nobody
//! else in this process waits for anything, so no status is ever stolen.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use rustix::process::{Pid, WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// How many are reaped before others have their turn.
const BATCH: usize = 128;

type Expected = Rc<RefCell<HashMap<Pid, oneshot::Sender<WaitStatus>>>>;

/// Reaps.
#[derive(Debug)]
pub(super) struct Reaper(Expected);

impl Reaper {
    /// Begins; no child may have been started before.
    pub(super) fn start() -> std::io::Result<Self> {
        let mut ended = signal(SignalKind::child())?;
        let expected = Expected::default();
        let reaper = Self(Rc::clone(&expected));
        tokio::task::spawn_local(async move {
            while ended.recv().await.is_some() {
                while reap(&expected, BATCH) {
                    tokio::task::yield_now().await;
                }
            }
        });
        Ok(reaper)
    }

    /// How a child will have ended. To be called before anything else can happen after its start.
    pub(super) fn expect(&self, pid: Pid) -> oneshot::Receiver<WaitStatus> {
        let (sender, receiver) = oneshot::channel();
        self.0.borrow_mut().insert(pid, sender);
        receiver
    }
}

/// Whether there may be more.
fn reap(expected: &Expected, most: usize) -> bool {
    for _ in 0..most {
        let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) else { return false };
        if let Some(sender) = expected.borrow_mut().remove(&pid) {
            // Whoever expected it may have given up.
            let _told = sender.send(status);
        }
    }
    true
}
