//! A stream of bytes from the guest.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::channel::{ChannelEvent, HostChannel};
use super::error::GuestError;
use crate::protocol::GuestReply;

/// A reader for the bytes of a file or an archive. Dropping it ends the transfer.
///
/// As [`AsyncRead`], its errors are [`GuestError`]s inside [`io::Error`]s.
#[derive(Debug)]
pub struct ByteReader {
    channel: HostChannel,
    chunk: Vec<u8>,
    at: usize,
    has_ended: bool,
}

impl ByteReader {
    pub(super) fn new(channel: HostChannel) -> Self {
        Self { channel, chunk: Vec::new(), at: 0, has_ended: false }
    }

    /// Returns the next chunk as received, or `None` at the end.
    ///
    /// # Errors
    /// The transfer has failed.
    pub async fn next_chunk(&mut self) -> Result<Option<Vec<u8>>, GuestError> {
        poll_fn(|context| self.poll_chunk(context)).await?;
        let rest = self.chunk.split_off(self.at);
        self.chunk.clear();
        self.at = 0;
        Ok((!rest.is_empty()).then_some(rest))
    }

    /// Ready if there are unread bytes, or the stream has ended.
    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<(), GuestError>> {
        while self.at == self.chunk.len() && !self.has_ended {
            match ready!(self.channel.poll_next(context))? {
                ChannelEvent::Data(bytes) => {
                    self.chunk = bytes;
                    self.at = 0;
                }
                ChannelEvent::End => {}
                ChannelEvent::Done(GuestReply::Ok) => self.has_ended = true,
                _ => return Poll::Ready(Err(self.channel.wrong_answer())),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for ByteReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_chunk(context))?;
        let len = buffer.remaining().min(self.chunk.len() - self.at);
        buffer.put_slice(&self.chunk[self.at..self.at + len]);
        self.at += len;
        Poll::Ready(Ok(()))
    }
}
