//! Bounded channels between threads that read or write files and the task that calls the server.

use std::io::{self, BufWriter, Read, Write};

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Buf, Bytes, Frame, Incoming};
use hyper::{Method, Response};
use tokio::sync::{mpsc, oneshot};

use super::progress::CopyProgress;
use crate::error::CliError;
use crate::os::Interrupts;
use crate::remote::http::{Body, Server};

const CHUNK_BYTES: usize = 128 << 10;
const MAX_CHUNKS: usize = 4;

type ChunkSender = mpsc::Sender<io::Result<Bytes>>;

/// Bytes for a server, produced by a thread.
pub(super) struct OutgoingBytes {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    /// The error of the thread, if it failed.
    failed: oneshot::Receiver<CliError>,
}

impl OutgoingBytes {
    /// Streams a file's content.
    pub(super) fn from_reader(mut file: impl Read + Send + 'static) -> Self {
        Self::from_writer(move |sink| {
            let failed = |error: io::Error| CliError::host(format!("cp: cannot read the source: {error}"));
            io::copy(&mut file, sink).map(drop).map_err(failed)
        })
    }

    /// Streams what `write` writes.
    pub(super) fn from_writer(
        write: impl FnOnce(&mut dyn Write) -> Result<(), CliError> + Send + 'static,
    ) -> Self {
        let (queue, pieces) = mpsc::channel(MAX_CHUNKS);
        let (failed_at, failed) = oneshot::channel();
        std::thread::spawn(move || {
            let mut sink =
                BufWriter::with_capacity(CHUNK_BYTES, ChunkWriter { queue: queue.clone(), refused: false });
            let written = write(&mut sink).and_then(|()| {
                sink.flush()
                    .map_err(|error| CliError::host(format!("cp: cannot send to the server: {error}")))
            });
            // If the server stopped reading, its response says why.
            if let (Err(failure), false) = (written, sink.get_ref().refused) {
                let _told = failed_at.send(failure);
                // An error ends the body, so that the server does not take it for complete.
                let _gone = queue.blocking_send(Err(io::ErrorKind::Interrupted.into()));
            }
        });
        Self { pieces, failed }
    }
}

struct ChunkWriter {
    queue: ChunkSender,
    /// Whether the receiver is gone.
    refused: bool,
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.refused = self.queue.blocking_send(Ok(Bytes::copy_from_slice(bytes))).is_err();
        if self.refused { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends the bytes. Returns their number, or `None` if interrupted.
pub(super) async fn send(
    server: &Server,
    url: &str,
    outgoing: OutgoingBytes,
    meter: CopyProgress,
) -> Result<Option<u64>, CliError> {
    let mut interrupts = Interrupts::listen()?;
    let (total_sender, total) = oneshot::channel();
    let OutgoingBytes { pieces, mut failed } = outgoing;
    let body = body(pieces, meter, total_sender);
    let sent = tokio::select! {
        sent = server.put(Method::PUT, url, body) => sent,
        () = interrupts.next() => return Ok(None),
    };
    match (failed.try_recv(), sent) {
        (Ok(failure), _) | (Err(_), Err(failure)) => Err(failure),
        (Err(_), Ok(_)) => Ok(Some(total.await.unwrap_or_default())),
    }
}

fn body(
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    meter: CopyProgress,
    total_sender: oneshot::Sender<u64>,
) -> Body {
    let frames =
        stream::unfold((pieces, meter, total_sender), |(mut pieces, mut meter, total_sender)| async {
            match pieces.recv().await {
                Some(piece) => {
                    meter.add(piece.as_ref().map_or(0, Bytes::len));
                    Some((piece.map(Frame::data), (pieces, meter, total_sender)))
                }
                None => {
                    let _waited_for = total_sender.send(meter.finish());
                    None
                }
            }
        });
    StreamBody::new(frames).boxed_unsync()
}

/// Bytes from a server, read by a thread.
pub(super) struct IncomingBytes {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for IncomingBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let len = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..len]);
        Ok(len)
    }
}

/// Has a thread consume a response. Returns the number of bytes, or `None` if interrupted. In any case the
/// thread has ended and cleaned up.
pub(super) async fn receive(
    response: Response<Incoming>,
    mut meter: CopyProgress,
    take: impl FnOnce(IncomingBytes) -> Result<(), CliError> + Send + 'static,
) -> Result<Option<u64>, CliError> {
    let mut interrupts = Interrupts::listen()?;
    let (queue, pieces) = mpsc::channel(MAX_CHUNKS);
    let (done, taken) = oneshot::channel();
    std::thread::spawn(move || {
        let _waited_for = done.send(take(IncomingBytes { pieces, piece: Bytes::new() }));
    });
    let interrupted = tokio::select! {
        () = pass(response.into_body(), &queue, &mut meter) => false,
        () = interrupts.next() => true,
    };
    if interrupted {
        let _gone = queue.send(Err(io::ErrorKind::Interrupted.into())).await;
    }
    drop(queue);
    let taken = taken.await.unwrap_or_else(|_| Err(CliError::host("cp: the writing thread panicked")));
    let bytes = meter.finish();
    if interrupted { Ok(None) } else { taken.map(|()| Some(bytes)) }
}

async fn pass(mut body: Incoming, queue: &ChunkSender, meter: &mut CopyProgress) {
    while let Some(frame) = body.frame().await {
        let piece = match frame.map(Frame::into_data) {
            Ok(Ok(piece)) => Ok(piece),
            Ok(Err(_trailers)) => continue,
            Err(error) => Err(io::Error::other(error)),
        };
        meter.add(piece.as_ref().map_or(0, Bytes::len));
        if queue.send(piece).await.is_err() {
            return;
        }
    }
}
