//! The connection between the launcher and a warm child.
//!
//! While a child preimports, it runs modules of its tenant, which can use every descriptor of the process. A
//! descriptor received over a socket is the launcher's to close, and a last close may block (a lingering
//! socket) or do work (a large deleted file) for as long as the tenant chooses. So the launcher accepts only
//! bytes from such a child: it shuts the socket down in that direction before the first module is imported,
//! and reads from a pipe instead.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_zygote::message::{SetupStep, StatusMessage, from_bytes};
use rustix::io::Errno;
use rustix::net::Shutdown;
use rustix::pipe::PipeFlags;

use crate::inside;
use crate::step::{Step, StepFailed};
use crate::{sys, wire};

/// Maximum size of a message from a child, in bytes.
const MAX_MESSAGE_BYTES: usize = 2 << 10;

/// The launcher's end of a child's connection.
pub(super) struct ChildConnection {
    socket: OwnedFd,
    /// Carries the child's messages once it has been told to prepare.
    pipe: Option<OwnedFd>,
}

/// A message from a child.
pub(super) struct ChildMessage {
    pub(super) kind: u32,
    /// The failed step, meaningful only if `kind` reports a failure.
    pub(super) failure: StepFailed,
    /// The attached descriptors; always empty for a child that was told to prepare.
    pub(super) fds: Vec<OwnedFd>,
}

impl ChildConnection {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, pipe: None }
    }

    /// Returns the descriptor that is readable when the child has sent a message.
    pub(super) fn watched(&self) -> BorrowedFd<'_> {
        self.pipe.as_ref().unwrap_or(&self.socket).as_fd()
    }

    pub(super) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        wire::send_bytes(self.socket.as_fd(), bytes, fds)
    }

    /// Tells the child to prepare. From now on the launcher accepts only bytes from it.
    pub(super) fn start_preparing(&mut self) -> Result<(), Errno> {
        rustix::net::shutdown(&self.socket, Shutdown::Read)?;
        let (pipe, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // Only the launcher's end is non-blocking: the child's writes may block, the launcher's reads must
        // not.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        self.pipe = Some(pipe);
        self.send(b"1", &[theirs.as_fd()])
    }

    /// Receives the next message. Fails with `EAGAIN` if there is none; `None` if the child exited or the
    /// message is invalid.
    pub(super) fn receive(&self) -> Result<Option<ChildMessage>, Errno> {
        let mut packet = [0; MAX_MESSAGE_BYTES];
        let (len, fds) = match &self.pipe {
            Some(pipe) => (rustix::io::read(pipe, &mut packet)?, Vec::new()),
            None => wire::try_receive_bytes(self.socket.as_fd(), &mut packet)?,
        };
        let message = from_bytes::<StatusMessage>(&packet[..len]);
        Ok(message.map(|(message, detail)| ChildMessage {
            kind: message.kind,
            failure: failure_of(message, detail),
            fds,
        }))
    }
}

/// Decodes the failed step that a child reported.
pub(super) fn failure_of(message: StatusMessage, detail: &[u8]) -> StepFailed {
    let step = SetupStep::from_number(message.step).map_or(Step::Fork, inside::common_step);
    StepFailed::new(step, String::from_utf8_lossy(detail), sys::errno_from_peer(message.errno))
}
