//! Viewers of a process's output, each with its own offset and pace. A viewer starts at any byte. One that
//! falls behind learns how much it missed; one that must not miss anything holds the process up instead.

use std::rc::Rc;

use super::GuestProcess;
use super::ring::RingChunk;
use crate::guest::GuestContext;
use crate::guest::channel::ChannelSender;
use crate::protocol::{AttachOptions, Failure, FailureKind, GuestEvent, GuestReply, ProcessId};

/// Attaches a viewer to a process.
pub(in crate::guest) async fn attach(
    world: &GuestContext,
    process: ProcessId,
    attach: AttachOptions,
    sender: &ChannelSender,
) -> Result<GuestReply, Failure> {
    let process = world.processes.get(process)?;
    if attach.from > process.ring.borrow().end() {
        return Err(process.failure(FailureKind::Invalid, "the offset is beyond its output"));
    }
    sender.answer(&GuestReply::Ok);
    view(&process, attach, sender).await
}

/// A viewer, registered with its process until it is dropped.
struct OutputViewer<'a> {
    process: &'a GuestProcess,
    number: u64,
    at: u64,
}

impl<'a> OutputViewer<'a> {
    fn new(process: &'a GuestProcess, attach: AttachOptions) -> Self {
        process.viewers.set(process.viewers.get() + 1);
        let mut holders = process.viewer_offsets.borrow_mut();
        let number = holders.last_key_value().map_or(0, |(number, _)| number + 1);
        if attach.hold {
            holders.insert(number, attach.from);
        }
        Self { process, number: if attach.hold { number } else { u64::MAX }, at: attach.from }
    }

    fn advance(&mut self, bytes: u64) {
        self.at += bytes;
        if let Some(at) = self.process.viewer_offsets.borrow_mut().get_mut(&self.number) {
            *at = self.at;
            self.process.changed.notify_waiters();
        }
    }
}

impl Drop for OutputViewer<'_> {
    fn drop(&mut self) {
        self.process.viewers.set(self.process.viewers.get() - 1);
        if self.process.viewer_offsets.borrow_mut().remove(&self.number).is_some() {
            self.process.changed.notify_waiters();
        }
    }
}

/// Sends output until the process has ended.
pub(super) async fn view(
    process: &Rc<GuestProcess>,
    attach: AttachOptions,
    sender: &ChannelSender,
) -> Result<GuestReply, Failure> {
    let mut viewer = OutputViewer::new(process, attach);
    loop {
        let changed = process.changed.notified();
        let next = match process.ring.borrow().find(viewer.at) {
            RingChunk::Bytes(stream, bytes) => {
                Some((GuestEvent::Output { stream, offset: viewer.at }, bytes.to_vec()))
            }
            RingChunk::Lost(bytes) => Some((GuestEvent::Lost { offset: viewer.at, bytes }, Vec::new())),
            RingChunk::Nothing => None,
        };
        match (next, process.final_ending()) {
            (Some((event, bytes)), _) => {
                sender.event(&event, &bytes).await?;
                let lost = if let GuestEvent::Lost { bytes, .. } = event { bytes } else { 0 };
                viewer.advance(lost + bytes.len() as u64);
            }
            (None, Some(ending)) => {
                return Ok(GuestReply::Ended { ending, output_bytes: process.ring.borrow().end() });
            }
            (None, None) => changed.await,
        }
    }
}
