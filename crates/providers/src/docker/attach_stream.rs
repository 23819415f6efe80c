//! The stream to a guest that runs as PID 1 of a container, over Docker's attach connection.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bollard::container::{AttachContainerResults, LogOutput};
use bollard::errors::Error;
use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much stderr of the container's first process is kept. It writes some only if it cannot be started.
const MAX_STDERR_BYTES: usize = 1 << 10;

/// Both directions of the attach connection.
pub(super) struct AttachStream {
    output: Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>,
    input: Pin<Box<dyn AsyncWrite + Send>>,
    /// Received bytes that were not read yet.
    unread: Vec<u8>,
    read_position: usize,
    stderr: StderrBuffer,
}

/// The stderr output of the container's first process.
#[derive(Debug, Clone, Default)]
pub(super) struct StderrBuffer(Arc<Mutex<Vec<u8>>>);

impl StderrBuffer {
    pub(super) fn text(&self) -> String {
        let stderr = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&stderr).trim().escape_debug().to_string()
    }

    fn add(&self, bytes: &[u8]) {
        let mut stderr = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MAX_STDERR_BYTES.saturating_sub(stderr.len());
        stderr.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

impl AttachStream {
    pub(super) fn new(attached: AttachContainerResults) -> Self {
        let AttachContainerResults { output, input } = attached;
        Self { output, input, unread: Vec::new(), read_position: 0, stderr: StderrBuffer::default() }
    }

    pub(super) fn stderr(&self) -> StderrBuffer {
        self.stderr.clone()
    }
}

impl fmt::Debug for AttachStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AttachStream")
    }
}

impl AsyncRead for AttachStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.read_position == self.unread.len() {
            match ready!(self.output.as_mut().poll_next(context)) {
                None => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                Some(Ok(LogOutput::StdErr { message })) => self.stderr.add(&message),
                Some(Ok(other)) => {
                    self.unread = other.into_bytes().into();
                    self.read_position = 0;
                }
            }
        }
        let len = buffer.remaining().min(self.unread.len() - self.read_position);
        buffer.put_slice(&self.unread[self.read_position..self.read_position + len]);
        self.read_position += len;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for AttachStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.input.as_mut().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_shutdown(context)
    }
}
