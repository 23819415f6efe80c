//! Viewers of a process's output, each with its own offset and pace.

use std::rc::Rc;

use super::Process;
use super::ring::Found;
use crate::guest::World;
use crate::guest::channel::Sender;
use crate::protocol::{Attach, Event, Failure, FailureKind, ProcessId, Reply};

/// Attaches a viewer to a process.
pub(in crate::guest) async fn attach(
    world: &World,
    process: ProcessId,
    attach: Attach,
    sender: &Sender,
) -> Result<Reply, Failure> {
    let process = world.processes.get(process)?;
    if attach.from > process.ring.borrow().end() {
        return Err(process.failure(FailureKind::Invalid, "the offset is beyond its output"));
    }
    sender.answer(&Reply::Ok);
    view(&process, attach, sender).await
}

/// A viewer, registered with its process until it is dropped.
struct Viewer<'a> {
    process: &'a Process,
    number: u64,
    at: u64,
}

impl<'a> Viewer<'a> {
    fn new(process: &'a Process, attach: Attach) -> Self {
        process.viewers.set(process.viewers.get() + 1);
        let mut holders = process.holders.borrow_mut();
        let number = holders.last_key_value().map_or(0, |(number, _)| number + 1);
        if attach.hold {
            holders.insert(number, attach.from);
        }
        Self { process, number: if attach.hold { number } else { u64::MAX }, at: attach.from }
    }

    fn advance(&mut self, bytes: u64) {
        self.at += bytes;
        if let Some(at) = self.process.holders.borrow_mut().get_mut(&self.number) {
            *at = self.at;
            self.process.changed.notify_waiters();
        }
    }
}

impl Drop for Viewer<'_> {
    fn drop(&mut self) {
        self.process.viewers.set(self.process.viewers.get() - 1);
        if self.process.holders.borrow_mut().remove(&self.number).is_some() {
            self.process.changed.notify_waiters();
        }
    }
}

/// Sends output until the process has ended.
pub(super) async fn view(process: &Rc<Process>, attach: Attach, sender: &Sender) -> Result<Reply, Failure> {
    let mut viewer = Viewer::new(process, attach);
    loop {
        let changed = process.changed.notified();
        let next = match process.ring.borrow().find(viewer.at) {
            Found::Bytes(stream, bytes) => {
                Some((Event::Output { stream, offset: viewer.at }, bytes.to_vec()))
            }
            Found::Lost(bytes) => Some((Event::Lost { offset: viewer.at, bytes }, Vec::new())),
            Found::Nothing => None,
        };
        match (next, process.over()) {
            (Some((event, bytes)), _) => {
                sender.event(&event, &bytes).await?;
                let lost = if let Event::Lost { bytes, .. } = event { bytes } else { 0 };
                viewer.advance(lost + bytes.len() as u64);
            }
            (None, Some(ending)) => {
                return Ok(Reply::Ended { ending, output_bytes: process.ring.borrow().end() });
            }
            (None, None) => changed.await,
        }
    }
}
