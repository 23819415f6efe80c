//! Connections to TCP ports of the sandbox.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Guest;
use super::channel::{ChannelEvent, HostChannel};
use super::error::GuestError;
use crate::protocol::{GuestReply, GuestRequest};

impl Guest {
    /// Connects to a port on the sandbox's loopback interface.
    ///
    /// # Errors
    /// An error of the guest; `Refused` if no program listens on the port.
    pub async fn open_port(&self, port: u16) -> Result<PortStream, GuestError> {
        let mut channel = self.open(&GuestRequest::Port { port }).await?;
        match channel.answer().await? {
            GuestReply::Ok => Ok(PortStream { channel, chunk: Vec::new(), at: 0, ended: false }),
            _ => Err(channel.wrong_answer()),
        }
    }
}

/// A connection to a program in the sandbox. Either side can shut down its direction independently.
#[derive(Debug)]
pub struct PortStream {
    channel: HostChannel,
    chunk: Vec<u8>,
    at: usize,
    ended: bool,
}

impl AsyncRead for PortStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.at == self.chunk.len() && !self.ended {
            match ready!(self.channel.poll_next(context))? {
                ChannelEvent::Data(bytes) => {
                    self.chunk = bytes;
                    self.at = 0;
                }
                ChannelEvent::End | ChannelEvent::Done(GuestReply::Ok) => self.ended = true,
                _ => return Poll::Ready(Err(self.channel.wrong_answer().into())),
            }
        }
        let len = buffer.remaining().min(self.chunk.len() - self.at);
        buffer.put_slice(&self.chunk[self.at..self.at + len]);
        self.at += len;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PortStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = ready!(self.channel.poll_send(context, bytes));
        Poll::Ready(sent.ok_or_else(|| io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.channel.end();
        Poll::Ready(Ok(()))
    }
}
