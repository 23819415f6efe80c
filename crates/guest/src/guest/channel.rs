//! The guest's end of a channel.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::line::{Credit, Outbox, Window};
use crate::protocol::{Event, Failure, FailureKind, Frame, Kind, MAX_BODY, Reply, encode};

/// A received item of a channel.
#[derive(Debug)]
pub(super) enum Incoming {
    Data(Vec<u8>),
    End,
}

/// Both directions of a channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
}

/// Sends on a channel.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    pub(super) channel: u32,
    pub(super) outbox: Outbox,
    pub(super) credit: Arc<Credit>,
}

/// Receives on a channel.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) outbox: Outbox,
    pub(super) window: Arc<Window>,
    pub(super) incoming: mpsc::UnboundedReceiver<Incoming>,
    pub(super) ended: bool,
}

impl Sender {
    fn frame(&self, kind: Kind, body: Vec<u8>) {
        self.outbox.send(Frame { channel: self.channel, kind, body });
    }

    /// Sends the answer that precedes bytes or events.
    pub(super) fn answer(&self, reply: &Reply) {
        self.frame(Kind::Answer, encode(reply));
    }

    /// Sends bytes; waits for credit.
    pub(super) async fn data(&self, bytes: Vec<u8>) -> Result<(), Failure> {
        self.paid(Kind::Data, bytes).await
    }

    /// Sends an event followed by bytes; waits for credit.
    pub(super) async fn event(&self, event: &Event, rest: &[u8]) -> Result<(), Failure> {
        let mut body = encode(event);
        body.extend_from_slice(rest);
        self.paid(Kind::Event, body).await
    }

    async fn paid(&self, kind: Kind, body: Vec<u8>) -> Result<(), Failure> {
        if !self.credit.take(body.len()).await {
            return Err(Failure::new(FailureKind::Cancelled, "channel", "closed"));
        }
        self.frame(kind, body);
        Ok(())
    }

    /// Ends the bytes in this direction.
    pub(super) fn end(&self) {
        self.frame(Kind::End, Vec::new());
    }

    /// Sends the result of the request.
    pub(super) fn done(&self, result: &Result<Reply, Failure>) {
        let mut body = encode(result);
        if body.len() > MAX_BODY {
            let failure = Failure::new(FailureKind::TooLarge, "answer", "exceeds one frame");
            body = encode(&Err::<Reply, _>(failure));
        }
        self.frame(Kind::Done, body);
    }
}

impl Receiver {
    /// Returns the next bytes, or `None` if the host sends no more.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        if self.ended {
            return None;
        }
        match self.incoming.recv().await {
            Some(Incoming::Data(bytes)) => {
                // Credit is returned when the next chunk is requested, so at most one more is in memory.
                self.window.used(Frame::cost_of(bytes.len()), &self.outbox);
                Some(bytes)
            }
            Some(Incoming::End) | None => {
                self.ended = true;
                None
            }
        }
    }
}
