//! The guest's end of a channel.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::flow_control::{FrameSender, ReceiveWindow, SendCredit};
use crate::protocol::{
    Failure, FailureKind, FrameKind, GuestEvent, GuestFrame, GuestReply, MAX_BODY_BYTES, encode,
};

/// A received item of a channel.
#[derive(Debug)]
pub(super) enum Incoming {
    Data(Vec<u8>),
    End,
}

/// Both directions of a channel.
#[derive(Debug)]
pub(super) struct GuestChannel {
    pub(super) sender: ChannelSender,
    pub(super) receiver: ChannelReceiver,
}

/// Sends on a channel.
#[derive(Debug, Clone)]
pub(super) struct ChannelSender {
    pub(super) channel: u32,
    pub(super) outbox: FrameSender,
    pub(super) credit: Arc<SendCredit>,
}

/// Receives on a channel.
#[derive(Debug)]
pub(super) struct ChannelReceiver {
    pub(super) outbox: FrameSender,
    pub(super) window: Arc<ReceiveWindow>,
    pub(super) incoming: mpsc::UnboundedReceiver<Incoming>,
    pub(super) ended: bool,
}

impl ChannelSender {
    fn frame(&self, kind: FrameKind, body: Vec<u8>) {
        self.outbox.send(GuestFrame { channel: self.channel, kind, body });
    }

    /// Sends the answer that precedes bytes or events.
    pub(super) fn answer(&self, reply: &GuestReply) {
        self.frame(FrameKind::Answer, encode(reply));
    }

    /// Sends bytes; waits for credit.
    pub(super) async fn data(&self, bytes: Vec<u8>) -> Result<(), Failure> {
        self.send_with_credit(FrameKind::Data, bytes).await
    }

    /// Sends an event followed by bytes; waits for credit.
    pub(super) async fn event(&self, event: &GuestEvent, rest: &[u8]) -> Result<(), Failure> {
        let mut body = encode(event);
        body.extend_from_slice(rest);
        self.send_with_credit(FrameKind::Event, body).await
    }

    async fn send_with_credit(&self, kind: FrameKind, body: Vec<u8>) -> Result<(), Failure> {
        if !self.credit.reserve(body.len()).await {
            return Err(Failure::new(FailureKind::Cancelled, "channel", "closed"));
        }
        self.frame(kind, body);
        Ok(())
    }

    /// Ends the bytes in this direction.
    pub(super) fn end(&self) {
        self.frame(FrameKind::End, Vec::new());
    }

    /// Sends the result of the request.
    pub(super) fn done(&self, result: &Result<GuestReply, Failure>) {
        let mut body = encode(result);
        if body.len() > MAX_BODY_BYTES {
            let failure = Failure::new(FailureKind::TooLarge, "answer", "exceeds one frame");
            body = encode(&Err::<GuestReply, _>(failure));
        }
        self.frame(FrameKind::Done, body);
    }
}

impl ChannelReceiver {
    /// Returns the next bytes, or `None` if the host sends no more.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        if self.ended {
            return None;
        }
        match self.incoming.recv().await {
            Some(Incoming::Data(bytes)) => {
                // Credit is returned when the next chunk is requested, so at most one more is in memory.
                self.window.release(GuestFrame::cost_of(bytes.len()), &self.outbox);
                Some(bytes)
            }
            Some(Incoming::End) | None => {
                self.ended = true;
                None
            }
        }
    }
}
