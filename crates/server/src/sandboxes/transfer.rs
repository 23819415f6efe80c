//! Streaming of bodies in constant memory, into and out of a sandbox. A transfer may take as long as it makes
//! progress. One that cannot be completed, because a file shrank or an archive broke off, ends the
//! connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use belljar_engine::sandbox_handle::ByteSource;
use futures_util::stream;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep};

use super::live_sandbox::SandboxInUse;

/// Size of a chunk in bytes, the same as a sandbox's.
const CHUNK_BYTES: usize = 64 << 10;

/// A body that may take arbitrarily long, but must not stall.
#[derive(Debug)]
pub(super) struct IdleTimeoutBody {
    body: Body,
    idle_timeout: Duration,
    deadline: Pin<Box<Sleep>>,
    waiting: bool,
    progress: watch::Sender<Instant>,
}

impl IdleTimeoutBody {
    pub(super) fn new(body: Body, time_limit: Duration) -> Self {
        let (deadline, progress) = (Box::pin(sleep(time_limit)), watch::Sender::new(Instant::now()));
        Self { body, idle_timeout: time_limit, deadline, waiting: false, progress }
    }

    /// Returns the time of the last progress.
    pub(super) fn progress(&self) -> watch::Receiver<Instant> {
        self.progress.subscribe()
    }

    /// Measures the time since the first pending poll, until a poll is ready.
    fn poll_idle_timeout(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.waiting {
            self.waiting = true;
            self.deadline.as_mut().reset(Instant::now() + self.idle_timeout);
        }
        self.deadline.as_mut().poll(context)
    }
}

impl HttpBody for IdleTimeoutBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(frame) => {
                self.waiting = false;
                self.progress.send_replace(Instant::now());
                Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)))
            }
            Poll::Pending => {
                ready!(self.poll_idle_timeout(context));
                Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request body as a reader, to be written into a sandbox.
#[derive(Debug)]
pub(crate) struct UploadReader {
    body: IdleTimeoutBody,
    piece: Bytes,
}

impl UploadReader {
    pub(crate) fn source(body: Body, time_limit: Duration) -> ByteSource<'static> {
        Box::pin(Self { body: IdleTimeoutBody::new(body, time_limit), piece: Bytes::new() })
    }
}

impl AsyncRead for UploadReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.piece.is_empty() {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
                return Poll::Ready(Ok(()));
            };
            self.piece = frame?.into_data().unwrap_or_default();
        }
        let taken = self.piece.len().min(buffer.remaining());
        buffer.put_slice(&self.piece.split_to(taken));
        Poll::Ready(Ok(()))
    }
}

/// Returns a body that streams from a sandbox. With a length, it is cut there; a source that ends early or
/// fails breaks the connection, so that the client notices that the response is incomplete.
pub(crate) fn download(used: SandboxInUse, source: ByteSource<'static>, length: Option<u64>) -> Body {
    Body::from_stream(stream::try_unfold((used, source, length), |(used, mut source, left)| async move {
        if left == Some(0) {
            return Ok(None);
        }
        let wanted = left.map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES as u64) as usize);
        let mut piece = Vec::with_capacity(wanted);
        (&mut source).take(wanted as u64).read_buf(&mut piece).await?;
        let left = left.map(|left| left - piece.len() as u64);
        match (piece.is_empty(), left) {
            (true, Some(_)) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            (true, None) => Ok(None),
            (false, left) => Ok(Some((Bytes::from(piece), (used, source, left)))),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    fn body(pieces: Vec<Option<&'static str>>) -> Body {
        let pieces = stream::iter(pieces).then(|piece| async move {
            match piece {
                Some(text) => {
                    sleep(Duration::from_millis(20)).await;
                    Ok::<_, io::Error>(Bytes::from_static(text.as_bytes()))
                }
                None => std::future::pending().await,
            }
        });
        Body::from_stream(pieces)
    }

    #[tokio::test]
    async fn a_slow_body_is_read_and_a_stalled_one_fails() {
        let time_limit = Duration::from_secs(2);
        let mut text = String::new();
        let mut slow = UploadReader::source(body(vec![Some("slow"); 130]), time_limit);
        slow.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "slow".repeat(130));
        let mut stalled = UploadReader::source(body(vec![Some("some"), None]), time_limit);
        let error = stalled.read_to_string(&mut text).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
