//! A stream that lets the client read an early error response. A server that refuses a long body responds and
//! closes the connection; a client that gives up at the first failed write never reads why.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Discards data after the peer has closed the connection; reading then reports the outcome.
#[derive(Debug)]
pub(super) struct EarlyResponseStream<S>(pub(super) S);

/// Counts a write to a closed connection as done.
fn count_as_written(written: Poll<io::Result<usize>>, len: usize) -> Poll<io::Result<usize>> {
    match written {
        Poll::Ready(Err(error)) if is_hangup(&error) => Poll::Ready(Ok(len)),
        other => other,
    }
}

fn is_hangup(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl<S: AsyncRead + Unpin> AsyncRead for EarlyResponseStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for EarlyResponseStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        count_as_written(Pin::new(&mut self.0).poll_write(context, bytes), bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        count_as_written(Pin::new(&mut self.0).poll_write_vectored(context, pieces), len)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_flush(context) {
            Poll::Ready(Err(error)) if is_hangup(&error) => Poll::Ready(Ok(())),
            other => other,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
