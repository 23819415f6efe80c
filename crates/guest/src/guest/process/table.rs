//! The table of running and remembered processes, bounded in number and output.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::task::AbortHandle;

use super::GuestProcess;
use crate::protocol::{Failure, FailureKind, GuestSettings, ProcessId, ProcessInfo};

/// The process table.
#[derive(Debug)]
pub(in crate::guest) struct Processes {
    entries: RefCell<BTreeMap<ProcessId, Rc<GuestProcess>>>,
    last: Cell<u64>,
    bound: usize,
    kept_bytes: u64,
}

impl Processes {
    pub(in crate::guest) fn new(settings: &GuestSettings) -> Self {
        Self {
            entries: RefCell::default(),
            last: Cell::new(0),
            bound: settings.processes as usize,
            kept_bytes: settings.kept_bytes,
        }
    }

    pub(in crate::guest) fn list(&self) -> Vec<ProcessInfo> {
        self.entries.borrow().values().map(|process| process.info()).collect()
    }

    pub(super) fn get(&self, id: ProcessId) -> Result<Rc<GuestProcess>, Failure> {
        let missing = || Failure::new(FailureKind::NotFound, format!("process {}", id.0), "no such process");
        self.entries.borrow().get(&id).cloned().ok_or_else(missing)
    }

    pub(super) fn next_id(&self) -> ProcessId {
        self.last.set(self.last.get() + 1);
        ProcessId(self.last.get())
    }

    pub(super) fn add(&self, process: Rc<GuestProcess>) {
        self.entries.borrow_mut().insert(process.id, process);
    }

    /// Makes room for one more process with `wanted` bytes of output. Forgets the oldest ended processes
    /// without viewers.
    pub(super) fn make_room(&self, wanted: u64) -> Result<(), Failure> {
        while !self.has_room(wanted) {
            let mut entries = self.entries.borrow_mut();
            let idle =
                |process: &&Rc<GuestProcess>| process.final_ending().is_some() && process.viewers.get() == 0;
            let Some(id) = entries.values().find(idle).map(|process| process.id) else {
                return Err(Failure::new(FailureKind::Busy, "processes", "limit reached"));
            };
            if let Some(process) = entries.remove(&id) {
                // Background processes that still write find their pipe closed.
                process.tasks.borrow().iter().for_each(AbortHandle::abort);
            }
        }
        Ok(())
    }

    fn has_room(&self, wanted: u64) -> bool {
        let entries = self.entries.borrow();
        let used: u64 = entries.values().map(|process| process.ring.borrow().max_bytes() as u64).sum();
        entries.len() < self.bound && used + wanted <= self.kept_bytes
    }
}
