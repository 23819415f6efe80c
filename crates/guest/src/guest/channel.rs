//! The guest's end of a channel.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::line::{Credit, Outbox, Window};
use crate::protocol::{Event, Failure, FailureKind, Frame, Kind, MAX_BODY, Reply, encode};

/// What came on a channel.
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

    /// What is known before bytes or events follow.
    pub(super) fn answer(&self, reply: &Reply) {
        self.frame(Kind::Answer, encode(reply));
    }

    /// Sends bytes when the host has room for them.
    pub(super) async fn data(&self, bytes: Vec<u8>) -> Result<(), Failure> {
        self.paid(Kind::Data, bytes).await
    }

    /// Sends an event, with bytes behind it, when the host has room for it.
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

    /// No more bytes from this side.
    pub(super) fn end(&self) {
        self.frame(Kind::End, Vec::new());
    }

    /// How it went.
    pub(super) fn done(&self, result: &Result<Reply, Failure>) {
        let mut body = encode(result);
        if body.len() > MAX_BODY {
            let failure = Failure::new(FailureKind::TooLarge, "answer", "too long for one frame");
            body = encode(&Err::<Reply, _>(failure));
        }
        self.frame(Kind::Done, body);
    }
}

impl Receiver {
    /// The next bytes; `None` when the host sends no more.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        if self.ended {
            return None;
        }
        match self.incoming.recv().await {
            Some(Incoming::Data(bytes)) => {
                // Whoever asks for the next piece is done with this one, so at most one more is in memory.
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
