//! The queue of frames to send. The protocol bounds its length: credit bounds bytes, and the number of
//! channels bounds the rest. Sending therefore never blocks, and neither does reading.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::mpsc;

use super::{CHUNK, Window};
use crate::protocol::Frame;

#[derive(Debug)]
enum Out {
    Frame(Frame),
    Credit(Arc<Window>),
}

/// Queues frames to be sent in order.
#[derive(Debug, Clone)]
pub(crate) struct Outbox(mpsc::UnboundedSender<Out>);

/// The receiving end of the queue.
#[derive(Debug)]
pub(crate) struct Queue(mpsc::UnboundedReceiver<Out>);

pub(crate) fn outbox() -> (Outbox, Queue) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Outbox(sender), Queue(receiver))
}

impl Outbox {
    /// Sends a frame. If the connection is gone, the frame is dropped: the reading task reports the loss to
    /// all callers.
    pub(crate) fn send(&self, frame: Frame) {
        let _gone = self.0.send(Out::Frame(frame));
    }

    pub(super) fn credit(&self, window: Arc<Window>) {
        let _gone = self.0.send(Out::Credit(window));
    }
}

/// Writes frames until all senders are dropped.
pub(crate) async fn write_out<W: AsyncWrite + Unpin>(line: W, mut queue: Queue) -> io::Result<()> {
    let mut line = BufWriter::with_capacity(2 * CHUNK, line);
    while let Some(mut out) = queue.0.recv().await {
        loop {
            let frame = match out {
                Out::Frame(frame) => frame,
                Out::Credit(window) => window.message(),
            };
            line.write_all(&frame.header()).await?;
            line.write_all(&frame.body).await?;
            match queue.0.try_recv() {
                Ok(next) => out = next,
                Err(_) => break,
            }
        }
        line.flush().await?;
    }
    line.shutdown().await
}
