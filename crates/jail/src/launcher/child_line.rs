//! The line between the launcher and a child of a zygote.
//!
//! While a child prepares, it imports modules of its tenant's, and those can use whatever the process has open. A descriptor
//! that comes over a socket is the launcher's to close, and a last close may wait (a socket that lingers) or work (a
//! large file that was removed), for as long as the tenant chooses. So nothing but bytes comes from such a child: the
//! socket is shut in that direction before the first module is imported, and a pipe takes its place.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::Shutdown;
use rustix::pipe::PipeFlags;

use crate::bare::message::{BirthStep, Word, from_bytes};
use crate::inside;
use crate::step::{Step, StepFailed};
use crate::{sys, wire};

/// The most that a child says at once.
const MAX_WORD: usize = 2 << 10;

pub(super) struct ChildLine {
    socket: OwnedFd,
    /// What the child says comes from here, where it has been told to prepare.
    pipe: Option<OwnedFd>,
}

/// What a child said.
pub(super) struct Heard {
    pub(super) kind: u32,
    /// The step that failed, where it says so.
    pub(super) failure: StepFailed,
    /// Never from a child that prepares.
    pub(super) fds: Vec<OwnedFd>,
}

impl ChildLine {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, pipe: None }
    }

    /// Where something comes from the child.
    pub(super) fn watched(&self) -> BorrowedFd<'_> {
        self.pipe.as_ref().unwrap_or(&self.socket).as_fd()
    }

    pub(super) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        wire::send_bytes(self.socket.as_fd(), bytes, fds)
    }

    /// Tells the child to prepare. From now on nothing but bytes comes from it.
    pub(super) fn have_prepared(&mut self) -> Result<(), Errno> {
        rustix::net::shutdown(&self.socket, Shutdown::Read)?;
        let (pipe, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // Only the launcher's end: the child's writes may block, the launcher's reads must not.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        self.pipe = Some(pipe);
        self.send(b"1", &[theirs.as_fd()])
    }

    /// The next word; `EAGAIN` where there is none, and `None` where the child is gone or not to be understood.
    pub(super) fn hear(&self) -> Result<Option<Heard>, Errno> {
        let mut packet = [0; MAX_WORD];
        let (len, fds) = match &self.pipe {
            Some(pipe) => (rustix::io::read(pipe, &mut packet)?, Vec::new()),
            None => wire::receive_bytes_now(self.socket.as_fd(), &mut packet)?,
        };
        let word = from_bytes::<Word>(&packet[..len]);
        Ok(word.map(|(word, detail)| Heard { kind: word.kind, failure: failure_of(word, detail), fds }))
    }
}

/// A step of a child that failed, as the child told it.
pub(super) fn failure_of(word: Word, detail: &[u8]) -> StepFailed {
    let step = BirthStep::of(word.step).map_or(Step::Fork, inside::step_of);
    StepFailed::new(step, String::from_utf8_lossy(detail), sys::told_errno(word.errno))
}
