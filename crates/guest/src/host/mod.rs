//! The host's half: a [`Guest`] that any number of tasks can use.
//!
//! A tenant may control everything that the guest sends. It is bounded by the protocol and checked before
//! use, and never causes a panic. A guest that violates the protocol is disconnected
//! ([`DisconnectReason::Violation`]).

mod archives;
mod bytes;
mod channel;
mod error;
mod files;
mod ports;
mod processes;
mod table;
#[cfg(test)]
mod tests;
mod watches;

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

pub use belljar_engine::sandbox_handle::OutputEvent;
pub use bytes::ByteReader;
pub use error::{DisconnectReason, GuestError, Violation};
pub use files::FileWriter;
pub use ports::PortStream;
pub use processes::{ProcessOutput, StdinWriter};
pub use watches::FileWatch;

use crate::flow_control::{CHUNK_BYTES, FrameSender, frame_queue, write_frames};
use crate::protocol::{
    FrameKind, GuestFrame, GuestRequest, GuestSettings, Hello, MAGIC, MAX_BODY_BYTES, VERSION, decode,
    encode, read_frame,
};
use channel::HostChannel;
use table::ChannelTable;

/// A connected guest. Clones share the connection. When the last clone and the last stream are dropped, the
/// connection closes, and the sandbox ends.
#[derive(Debug, Clone)]
pub struct Guest(Arc<Connection>);

#[derive(Debug)]
struct Connection {
    outbox: FrameSender,
    table: Arc<ChannelTable>,
    slots: Arc<Semaphore>,
    gone: watch::Receiver<bool>,
    tasks: [AbortHandle; 2],
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Guest {
    /// Connects to the guest at the other end of a stream.
    ///
    /// # Errors
    /// [`GuestError::Gone`] if there is no guest, or one with another version.
    pub async fn connect<S>(line: S, settings: GuestSettings) -> Result<Self, GuestError>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (reader, writer) = tokio::io::split(line);
        let mut reader = BufReader::with_capacity(CHUNK_BYTES, reader);
        let (outbox, queue) = frame_queue();
        let slots = Arc::new(Semaphore::new(settings.channels as usize));
        let hello = Hello { magic: MAGIC, version: VERSION, settings };
        outbox.send(GuestFrame { channel: 0, kind: FrameKind::Hello, body: encode(&hello) });
        let (went, gone) = watch::channel(false);
        let table = Arc::new(ChannelTable::default());
        let writing = tokio::spawn({
            let table = Arc::clone(&table);
            async move {
                if let Err(error) = write_frames(writer, queue).await {
                    table.disconnect(DisconnectReason::Line(error.kind()));
                }
            }
        });
        if let Err(loss) = greet(&mut reader).await {
            writing.abort();
            return Err(GuestError::Gone(loss));
        }
        let reading = tokio::spawn({
            let table = Arc::clone(&table);
            async move {
                let loss = read_frames(&mut reader, &table).await;
                table.disconnect(loss);
                let _watched = went.send(true);
            }
        });
        let tasks = [writing.abort_handle(), reading.abort_handle()];
        Ok(Self(Arc::new(Connection { outbox, table, slots, gone, tasks })))
    }

    /// Waits until the guest is gone, and returns the reason.
    pub async fn gone(&self) -> DisconnectReason {
        let mut gone = self.0.gone.clone();
        // An error means that the reading task has ended, so the guest is gone, too.
        let _gone = gone.wait_for(|gone| *gone).await;
        self.0.table.loss()
    }

    /// Returns whether the guest is gone.
    pub fn is_gone(&self) -> bool {
        // An error means that the reading task has ended, so the guest is gone, too.
        *self.0.gone.borrow() || self.0.gone.has_changed().is_err()
    }

    /// Opens a channel with a request.
    async fn open(&self, request: &GuestRequest) -> Result<HostChannel, GuestError> {
        let body = encode(request);
        if body.len() > MAX_BODY_BYTES {
            return Err(GuestError::RequestTooLarge);
        }
        let slot = Arc::clone(&self.0.slots).acquire_owned();
        let slot = tokio::select! {
            slot = slot => slot.map_err(|_| GuestError::Gone(self.0.table.loss()))?,
            loss = self.gone() => return Err(GuestError::Gone(loss)),
        };
        let opened = self.0.table.open(slot).map_err(GuestError::Gone)?;
        self.0.outbox.send(GuestFrame { channel: opened.channel, kind: FrameKind::Request, body });
        Ok(HostChannel::new(Arc::clone(&self.0), opened))
    }
}

impl Connection {
    /// Disconnects a guest that violated a rule which only the caller of a request can check.
    fn disconnect(&self, violation: Violation) -> GuestError {
        self.table.disconnect(DisconnectReason::Violation(violation));
        self.tasks.iter().for_each(AbortHandle::abort);
        GuestError::Gone(self.table.loss())
    }
}

async fn greet<R: AsyncRead + Unpin>(line: &mut R) -> Result<(), DisconnectReason> {
    let frame = read_frame(line).await?.ok_or(DisconnectReason::Ended)?;
    let hello: Hello = Some(frame)
        .filter(|frame| frame.kind == FrameKind::Hello && frame.channel == 0)
        .and_then(|frame| decode(&frame.body))
        .filter(|hello: &Hello| hello.magic == MAGIC)
        .ok_or(DisconnectReason::Violation(Violation::NoHello))?;
    if hello.version != VERSION {
        return Err(DisconnectReason::Violation(Violation::Version(hello.version)));
    }
    Ok(())
}

/// Reads frames until the connection is lost, and returns the reason.
async fn read_frames<R: AsyncRead + Unpin>(line: &mut R, table: &ChannelTable) -> DisconnectReason {
    loop {
        match read_frame(line).await {
            Ok(Some(frame)) => {
                if let Err(violation) = table.deliver(frame) {
                    return DisconnectReason::Violation(violation);
                }
            }
            Ok(None) => return DisconnectReason::Ended,
            Err(error) => return error.into(),
        }
    }
}
