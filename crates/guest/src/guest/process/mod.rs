//! Processes, each in its own session. Their output is kept for current and later viewers.
//!
//! ```text
//! running ──leader exits──▶ output unread ──all read──▶ ended ──space needed──▶ forgotten
//! ```
//!
//! While output that was written before the end is unread, the process counts as running, so that its length is final
//! when it has ended. Only a viewer can hold the reading up for long; then it counts as ended at once.
//!
//! Background processes of a program may continue to write: their output is read and kept, too.

mod collect;
mod input;
mod ring;
mod signal_all;
mod start;
mod table;
mod viewer;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use rustix::process::{Pid, Signal};
use tokio::sync::{Mutex, Notify};
use tokio::task::AbortHandle;

pub(super) use input::write;
pub(super) use signal_all::{StoppedProcesses, end_all};
pub(super) use start::start;
pub(super) use table::Processes;
pub(super) use viewer::attach;

use super::descriptor::Descriptor;
use super::{GuestContext, terminal};
use crate::protocol::{
    CommandEnding, Failure, FailureKind, GuestReply, ProcessId, ProcessInfo, TerminalSize,
};
use input::Input;
use ring::OutputRing;

/// A process.
#[derive(Debug)]
struct GuestProcess {
    id: ProcessId,
    pid: Pid,
    command: String,
    terminal: Option<Rc<Descriptor>>,
    input: Mutex<Option<Input>>,
    ring: RefCell<OutputRing>,
    /// Number of streams that may still contain output written before the end.
    unread_streams: Cell<usize>,
    /// Number of those streams that are not read because a viewer is behind.
    held_streams: Cell<usize>,
    /// How the leader exited.
    ending: Cell<Option<CommandEnding>>,
    /// Whether the ending is shown.
    is_end_shown: Cell<bool>,
    /// Notified when any of the fields above changes.
    changed: Notify,
    viewers: Cell<usize>,
    /// Read offsets of the viewers that the process waits for.
    viewer_offsets: RefCell<BTreeMap<u64, u64>>,
    tasks: RefCell<Vec<AbortHandle>>,
}

impl GuestProcess {
    /// Returns the ending, once all output has been read.
    fn final_ending(&self) -> Option<CommandEnding> {
        self.ending.get().filter(|_| self.unread_streams.get() == 0)
    }

    /// Returns the ending, once its output has been read or is held up by a viewer.
    fn shown_ending(&self) -> Option<CommandEnding> {
        self.ending.get().filter(|_| self.is_end_shown.get())
    }

    /// Marks one stream as read up to the end of the process.
    fn mark_stream_read(&self) {
        self.unread_streams.set(self.unread_streams.get() - 1);
        self.update_shown_ending();
    }

    fn set_ending(&self, ending: CommandEnding) {
        self.ending.set(Some(ending));
        self.update_shown_ending();
    }

    fn update_shown_ending(&self) {
        if self.ending.get().is_some() && self.held_streams.get() >= self.unread_streams.get() {
            self.is_end_shown.set(true);
        }
        self.changed.notify_waiters();
    }

    /// Waits until the next bytes of a stream do not displace output that a viewer still needs.
    async fn wait_for_room(&self, is_unread: bool) {
        if self.has_room() {
            return;
        }
        let held = usize::from(is_unread);
        self.held_streams.set(self.held_streams.get() + held);
        self.update_shown_ending();
        self.wait_until(|| self.has_room()).await;
        self.held_streams.set(self.held_streams.get() - held);
    }

    fn has_room(&self) -> bool {
        let slowest = self.viewer_offsets.borrow().values().copied().min();
        slowest.is_none_or(|slowest| self.ring.borrow().has_room_before(slowest))
    }

    async fn wait_until(&self, condition: impl Fn() -> bool) {
        loop {
            let changed = self.changed.notified();
            if condition() {
                return;
            }
            changed.await;
        }
    }

    /// Sends a signal to the process group. Fails for a reaped process: its PID may have been reused.
    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        if self.ending.get().is_some() {
            return Err(self.failure(FailureKind::Ended, "it has ended"));
        }
        rustix::process::kill_process_group(self.pid, signal)
            .map_err(|errno| Failure::from_io(&errno.into(), self.subject()))
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
            ending: self.shown_ending(),
            output_bytes: self.ring.borrow().end(),
        }
    }
}

pub(super) fn signal(world: &GuestContext, process: ProcessId, number: i32) -> Result<GuestReply, Failure> {
    let process = world.processes.get(process)?;
    let signal = Signal::from_named_raw(number)
        .ok_or_else(|| Failure::new(FailureKind::Invalid, format!("signal {number}"), "no such signal"))?;
    process.signal(signal).map(|()| GuestReply::Ok)
}

pub(super) async fn wait_for_end(world: &GuestContext, process: ProcessId) -> Result<GuestReply, Failure> {
    let process = world.processes.get(process)?;
    process.wait_until(|| process.shown_ending().is_some()).await;
    Ok(GuestReply::Ok)
}

pub(super) fn resize(
    world: &GuestContext,
    process: ProcessId,
    size: TerminalSize,
) -> Result<GuestReply, Failure> {
    let process = world.processes.get(process)?;
    let Some(terminal) = &process.terminal else {
        return Err(process.failure(FailureKind::Invalid, "it has no terminal"));
    };
    terminal::resize(terminal.fd(), size)
        .map_err(|errno| Failure::from_io(&errno.into(), process.subject()))?;
    Ok(GuestReply::Ok)
}
