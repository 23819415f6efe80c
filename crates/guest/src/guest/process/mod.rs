//! Processes: started in sessions of their own, their output kept for whoever looks, now or later.
//!
//! ```text
//! running ──leader ends──▶ ended, output still to be read ──all read──▶ ended ──room is needed──▶ forgotten
//! ```
//!
//! What a program leaves running in the background may go on writing: it is read, and kept like the rest.

mod collect;
mod everybody;
mod input;
mod ring;
mod start;
mod table;
mod view;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use rustix::process::{Pid, Signal};
use tokio::sync::{Mutex, Notify};
use tokio::task::AbortHandle;

pub(super) use everybody::{Stilled, end_all};
pub(super) use input::write;
pub(super) use start::start;
pub(super) use table::Processes;
pub(super) use view::attach;

use super::descriptor::Descriptor;
use super::{World, terminal};
use crate::protocol::{Ending, Failure, FailureKind, ProcessId, ProcessInfo, Reply, TerminalSize};
use input::Input;
use ring::Ring;

/// A process.
#[derive(Debug)]
struct Process {
    id: ProcessId,
    pid: Pid,
    command: String,
    terminal: Option<Rc<Descriptor>>,
    input: Mutex<Option<Input>>,
    ring: RefCell<Ring>,
    /// Streams that may still hold what was written before the end.
    unread: Cell<usize>,
    ending: Cell<Option<Ending>>,
    /// Something of the above changed.
    changed: Notify,
    viewers: Cell<usize>,
    /// How far those viewers are for which the process waits.
    holders: RefCell<BTreeMap<u64, u64>>,
    tasks: RefCell<Vec<AbortHandle>>,
}

impl Process {
    /// How it ended, once everything that it wrote has been read.
    fn over(&self) -> Option<Ending> {
        self.ending.get().filter(|_| self.unread.get() == 0)
    }

    /// One of its streams has been read as far as it mattered.
    fn stream_read(&self) {
        self.unread.set(self.unread.get() - 1);
        self.changed.notify_waiters();
    }

    fn end(&self, ending: Ending) {
        self.ending.set(Some(ending));
        self.changed.notify_waiters();
    }

    /// Waits until the next bytes push nothing out that somebody has asked to see.
    async fn room(&self) {
        loop {
            let changed = self.changed.notified();
            let slowest = self.holders.borrow().values().copied().min();
            if slowest.is_none_or(|slowest| self.ring.borrow().has_room_before(slowest)) {
                return;
            }
            changed.await;
        }
    }

    /// Waits for its end.
    async fn ended(&self) {
        loop {
            let changed = self.changed.notified();
            if self.ending.get().is_some() {
                return;
            }
            changed.await;
        }
    }

    /// Sends a signal to its group. A process that was reaped has none: its number may be somebody else's.
    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        if self.ending.get().is_some() {
            return Err(self.failure(FailureKind::Ended, "it has ended"));
        }
        rustix::process::kill_process_group(self.pid, signal)
            .map_err(|errno| Failure::of_io(&errno.into(), self.subject()))
    }

    fn subject(&self) -> String {
        format!("process {}", self.id.0)
    }

    fn failure(&self, kind: FailureKind, message: &str) -> Failure {
        Failure::new(kind, self.subject(), message)
    }

    fn info(&self) -> ProcessInfo {
        ProcessInfo {
            id: self.id,
            pid: self.pid.as_raw_nonzero().get().unsigned_abs(),
            command: self.command.clone(),
            terminal: self.terminal.is_some(),
            ending: self.ending.get(),
            output_bytes: self.ring.borrow().end(),
        }
    }
}

pub(super) fn signal(world: &World, process: ProcessId, number: i32) -> Result<Reply, Failure> {
    let process = world.processes.get(process)?;
    let signal = Signal::from_named_raw(number).ok_or_else(|| {
        Failure::new(FailureKind::Invalid, format!("signal {number}"), "there is no such signal")
    })?;
    process.signal(signal).map(|()| Reply::Ok)
}

pub(super) fn resize(world: &World, process: ProcessId, size: TerminalSize) -> Result<Reply, Failure> {
    let process = world.processes.get(process)?;
    let Some(terminal) = &process.terminal else {
        return Err(process.failure(FailureKind::Invalid, "it has no terminal"));
    };
    terminal::resize(terminal.fd(), size)
        .map_err(|errno| Failure::of_io(&errno.into(), process.subject()))?;
    Ok(Reply::Ok)
}
