//! The queue of frames to send. The protocol bounds its length: credit bounds bytes, and the number of
//! channels bounds the rest. Sending therefore never blocks, and neither does reading.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::mpsc;

use super::{CHUNK_BYTES, ReceiveWindow};
use crate::protocol::GuestFrame;

#[derive(Debug)]
enum QueuedItem {
    Frame(GuestFrame),
    Credit(Arc<ReceiveWindow>),
}

/// Queues frames to be sent in order.
#[derive(Debug, Clone)]
pub(crate) struct FrameSender(mpsc::UnboundedSender<QueuedItem>);

/// The receiving end of the queue.
#[derive(Debug)]
pub(crate) struct FrameQueue(mpsc::UnboundedReceiver<QueuedItem>);

pub(crate) fn frame_queue() -> (FrameSender, FrameQueue) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (FrameSender(sender), FrameQueue(receiver))
}

impl FrameSender {
    /// Sends a frame. If the connection is gone, the frame is dropped: the reading task reports the loss to
    /// all callers.
    pub(crate) fn send(&self, frame: GuestFrame) {
        let _gone = self.0.send(QueuedItem::Frame(frame));
    }

    pub(super) fn queue_credit(&self, window: Arc<ReceiveWindow>) {
        let _gone = self.0.send(QueuedItem::Credit(window));
    }
}

/// Writes frames until all senders are dropped.
pub(crate) async fn write_frames<W: AsyncWrite + Unpin>(line: W, mut queue: FrameQueue) -> io::Result<()> {
    let mut line = BufWriter::with_capacity(2 * CHUNK_BYTES, line);
    while let Some(mut out) = queue.0.recv().await {
        loop {
            let frame = match out {
                QueuedItem::Frame(frame) => frame,
                QueuedItem::Credit(window) => window.take_credit_frame(),
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
