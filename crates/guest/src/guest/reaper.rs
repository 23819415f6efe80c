//! Reaps all children in one place: expected ones are reported, orphans are discarded. No other code in this
//! process waits for children, so no status is lost.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use rustix::process::{Pid, WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Number of children reaped before other tasks run.
const BATCH: usize = 128;

type Expected = Rc<RefCell<HashMap<Pid, oneshot::Sender<WaitStatus>>>>;

/// Reaps all children of this process.
#[derive(Debug)]
pub(super) struct ChildReaper(Expected);

impl ChildReaper {
    /// Starts reaping; no child may have been started before.
    pub(super) fn start() -> std::io::Result<Self> {
        let mut ended = signal(SignalKind::child())?;
        let expected = Expected::default();
        let reaper = Self(Rc::clone(&expected));
        tokio::task::spawn_local(async move {
            while ended.recv().await.is_some() {
                while reap_children(&expected, BATCH) {
                    tokio::task::yield_now().await;
                }
            }
        });
        Ok(reaper)
    }

    /// Returns the future exit status of a child. Must be called right after its start, before the event loop
    /// runs.
    pub(super) fn expect(&self, pid: Pid) -> oneshot::Receiver<WaitStatus> {
        let (sender, receiver) = oneshot::channel();
        self.0.borrow_mut().insert(pid, sender);
        receiver
    }
}

/// Reaps up to `most` children; returns whether there may be more.
fn reap_children(expected: &Expected, most: usize) -> bool {
    for _ in 0..most {
        let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) else { return false };
        if let Some(sender) = expected.borrow_mut().remove(&pid) {
            // The receiver may be gone.
            let _sent = sender.send(status);
        }
    }
    true
}
