//! Messages between the provider and the launcher: one packet each, descriptors beside it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::spec::{
    Answer, Ask, Ending, Jail, Kept, Layer, Mismatch, MissingLayer, PoolState, RootTree, Settings, Turns,
    Usage, Warmth,
};
use crate::step::StepFailed;

/// The largest packet; a jail with its environment and commands fits many times over.
pub const MAX_PACKET: usize = 192 << 10;
const MAX_FDS: usize = crate::bare::message::MAX_FDS;

/// To the launcher.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// What to keep ready from now on.
    Keep(Settings),
    /// Tell what is kept ready.
    Pools {
        /// Number of the question.
        run: u64,
    },
    /// A root tree, which jails then name by its number.
    Root {
        /// Never used for another.
        number: u64,
        /// What it consists of.
        tree: RootTree,
    },
    /// Start a jail. Descriptors: payload, stdin, stdout, stderr, then the result pipe and the artifacts pipe where
    /// the jail has them; for a living one, only the guest's line. Where its network has a gate, the last one is
    /// where to send the gate's sockets.
    Start {
        /// Number of the run.
        run: u64,
        /// What to start.
        jail: Box<Jail>,
    },
    /// End a run.
    Kill {
        /// Number of the run.
        run: u64,
    },
    /// Ask something of a living jail.
    Ask {
        /// Number of the question.
        run: u64,
        /// Number of the run that is the jail.
        of: u64,
        /// What.
        what: Ask,
    },
}

/// From the launcher.
#[derive(Debug, Serialize, Deserialize)]
pub enum Notice {
    /// The launcher is ready.
    Ready {
        /// Layers that this host does not give.
        missing: Vec<MissingLayer>,
        /// Why no jail can be paused, where none can.
        no_freezer: Option<String>,
    },
    /// The launcher cannot work here.
    Broken(StepFailed),
    /// A run ended.
    Ended {
        /// Number of the run.
        run: u64,
        /// How.
        ending: Ending,
        /// What it used.
        usage: Usage,
        /// From the order to the ending.
        duration: Duration,
        /// What was in force.
        layers: Vec<Layer>,
        /// Whether an interpreter was waiting.
        warmth: Warmth,
        /// What it was kept from.
        kept: Kept,
    },
    /// What is kept ready.
    Pools {
        /// Number of the question.
        run: u64,
        /// Each pool.
        pools: Vec<PoolState>,
        /// The longest turns of the loop.
        turns: Vec<Turns>,
    },
    /// What came of a question.
    Answered {
        /// Number of the question.
        run: u64,
        /// The answer.
        answer: Answer,
    },
    /// A child of a zygote was not confined as it said; it and its zygote were ended.
    Mismatch(Mismatch),
    /// A run could not be set up; nothing of it ran.
    Failed {
        /// Number of the run.
        run: u64,
        /// The step.
        failure: StepFailed,
    },
}

/// Sends a message.
///
/// # Errors
/// `E2BIG` where it is larger than a packet may be, `EAGAIN` where there is no room for it now, or the socket's own error.
pub fn send<T: Serialize>(socket: BorrowedFd<'_>, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    send_bytes(socket, &postcard::to_allocvec(message).map_err(|_| Errno::INVAL)?, fds)
}

/// Sends a message, and waits for room where the other side has not taken what was sent before.
pub(crate) fn send_patiently<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let bytes = postcard::to_allocvec(message).map_err(|_| Errno::INVAL)?;
    send_as(socket, &bytes, fds, SendFlags::NOSIGNAL)
}

/// Receives a message of at most a few kilobytes, and fails with `EAGAIN` where none is there yet.
pub(crate) fn receive_now<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> Result<Option<(T, Vec<OwnedFd>)>, Errno> {
    let mut buffer = [0; 4 << 10];
    let (len, fds) = receive_bytes_now(socket, &mut buffer)?;
    if len == 0 {
        return Ok(None);
    }
    let message = postcard::from_bytes(&buffer[..len]).map_err(|_| Errno::BADMSG)?;
    Ok(Some((message, fds)))
}

/// Sends a packet of other making; never waits for room.
pub(crate) fn send_bytes(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    send_as(socket, bytes, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_as(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    if bytes.len() > MAX_PACKET {
        return Err(Errno::TOOBIG);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Receives a message; `None` at the end of the connection.
///
/// # Errors
/// `EAGAIN` where the socket is non-blocking and nothing is there, `EBADMSG` for a packet that is none of ours.
pub fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
) -> Result<Option<(T, Vec<OwnedFd>)>, Errno> {
    if buffer.is_empty() {
        buffer.resize(MAX_PACKET, 0);
    }
    let (len, fds) = receive_bytes(socket, buffer)?;
    if len == 0 {
        return Ok(None);
    }
    let message = postcard::from_bytes(&buffer[..len]).map_err(|_| Errno::BADMSG)?;
    Ok(Some((message, fds)))
}

/// Receives the one message that a process waits for, in no more memory than it takes.
///
/// # Errors
/// As [`receive`].
pub(crate) fn receive_one<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> Result<Option<(T, Vec<OwnedFd>)>, Errno> {
    let look = RecvFlags::PEEK | RecvFlags::TRUNC;
    let (_, len) = rustix::net::recv(socket, &mut [0_u8; 1], look)?;
    receive(socket, &mut vec![0; len.max(1)])
}

/// Receives a packet of other making; its length, which is 0 at the end of the connection.
pub(crate) fn receive_bytes(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    receive_as(socket, buffer, RecvFlags::CMSG_CLOEXEC)
}

/// The same, and `EAGAIN` where nothing is there yet.
pub(crate) fn receive_bytes_now(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    receive_as(socket, buffer, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)
}

fn receive_as(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received =
        rustix::net::recvmsg(socket.as_fd(), &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((received.bytes, fds))
}
