//! The caller's end of a channel.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::Connection;
use super::error::{GuestError, Violation};
use super::table::{ChannelHandle, ChannelItem};
use crate::flow_control::CHUNK_BYTES;
use crate::protocol::{FrameKind, GuestEvent, GuestFrame, GuestReply};

/// An open channel. Dropping it cancels the request.
#[derive(Debug)]
pub(super) struct HostChannel {
    connection: Arc<Connection>,
    opened: ChannelHandle,
    sent_end: bool,
    finished: bool,
}

/// A received frame, as the caller sees it.
#[derive(Debug)]
pub(super) enum ChannelEvent {
    Answer(GuestReply),
    Data(Vec<u8>),
    Event(GuestEvent, Vec<u8>),
    End,
    Done(GuestReply),
}

impl HostChannel {
    pub(super) fn new(connection: Arc<Connection>, opened: ChannelHandle) -> Self {
        Self { connection, opened, sent_end: false, finished: false }
    }

    /// Polls for the next event. None follows an error or [`ChannelEvent::Done`].
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<ChannelEvent, GuestError>> {
        let Some(item) = ready!(self.opened.items.poll_recv(context)) else {
            self.finished = true;
            return Poll::Ready(Err(GuestError::Gone(self.connection.table.loss())));
        };
        Poll::Ready(Ok(match item {
            ChannelItem::Answer(reply) => ChannelEvent::Answer(reply),
            ChannelItem::Data(bytes) => {
                self.release_credit(GuestFrame::cost_of(bytes.len()));
                ChannelEvent::Data(bytes)
            }
            ChannelItem::Event(event, rest, cost) => {
                self.release_credit(cost);
                ChannelEvent::Event(event, rest)
            }
            ChannelItem::End => ChannelEvent::End,
            ChannelItem::Done(result) => {
                self.finished = true;
                match result {
                    Ok(reply) => ChannelEvent::Done(reply),
                    Err(failure) => return Poll::Ready(Err(failure.into())),
                }
            }
        }))
    }

    pub(super) async fn next(&mut self) -> Result<ChannelEvent, GuestError> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Returns credit for consumed data.
    fn release_credit(&self, cost: u32) {
        self.opened.window.release(cost, &self.connection.outbox);
    }

    /// Waits for the answer that precedes bytes or events.
    pub(super) async fn answer(&mut self) -> Result<GuestReply, GuestError> {
        match self.next().await? {
            ChannelEvent::Answer(reply) => Ok(reply),
            _ => Err(self.wrong_answer()),
        }
    }

    /// Waits for the final reply, which must be [`GuestReply::Ok`].
    pub(super) async fn done_ok(mut self) -> Result<(), GuestError> {
        match self.next().await? {
            ChannelEvent::Done(GuestReply::Ok) => Ok(()),
            _ => Err(self.wrong_answer()),
        }
    }

    /// Disconnects a guest whose answer does not match the request.
    pub(super) fn wrong_answer(&mut self) -> GuestError {
        self.finished = true;
        self.connection.disconnect(Violation::WrongAnswer)
    }

    /// Sends some of the bytes, at least one, and returns how many. Returns `None` if the guest has ended the
    /// request.
    pub(super) fn poll_send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Option<usize>> {
        if self.sent_end {
            return Poll::Ready(None);
        }
        let taken = ready!(self.opened.credit.poll_reserve_some(context, bytes.len().min(CHUNK_BYTES)));
        if let Some(taken) = taken {
            let body = bytes[..taken].to_vec();
            self.connection.outbox.send(GuestFrame {
                channel: self.opened.channel,
                kind: FrameKind::Data,
                body,
            });
        }
        Poll::Ready(taken)
    }

    /// Sends all bytes; returns whether the guest accepts them.
    pub(super) async fn send(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match poll_fn(|context| self.poll_send(context, bytes)).await {
                Some(sent) => bytes = &bytes[sent..],
                None => return false,
            }
        }
        true
    }

    /// Sends all bytes, or returns the guest's reason for not accepting them.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), GuestError> {
        if self.send(bytes).await {
            return Ok(());
        }
        match self.next().await {
            Err(error) => Err(error),
            Ok(_) => Err(self.wrong_answer()),
        }
    }

    /// Ends the bytes in this direction.
    pub(super) fn end(&mut self) {
        if !std::mem::replace(&mut self.sent_end, true) {
            self.connection.outbox.send(GuestFrame::without_body(self.opened.channel, FrameKind::End));
        }
    }
}

impl Drop for HostChannel {
    fn drop(&mut self) {
        if !self.finished {
            self.connection.outbox.send(GuestFrame::without_body(self.opened.channel, FrameKind::Cancel));
        }
    }
}
