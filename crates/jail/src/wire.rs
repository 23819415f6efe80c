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

use crate::spec::{Ending, Jail, Layer, MissingLayer, PoolState, Settings, Usage, Warmth};
use crate::step::StepFailed;

/// The largest packet; a jail with its environment and commands fits many times over.
pub const MAX_PACKET: usize = 192 << 10;
const MAX_FDS: usize = 8;

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
    /// Start a jail. Descriptors: payload, stdin, stdout, stderr, then the result pipe and the artifacts pipe where
    /// the jail has them.
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
}

/// From the launcher.
#[derive(Debug, Serialize, Deserialize)]
pub enum Notice {
    /// The launcher is ready.
    Ready {
        /// Layers that this host does not give.
        missing: Vec<MissingLayer>,
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
    },
    /// What is kept ready.
    Pools {
        /// Number of the question.
        run: u64,
        /// Each pool.
        pools: Vec<PoolState>,
    },
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
/// `E2BIG` where it is larger than a packet may be, or the socket's own error.
pub fn send<T: Serialize>(socket: BorrowedFd<'_>, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let bytes = postcard::to_allocvec(message).map_err(|_| Errno::INVAL)?;
    if bytes.len() > MAX_PACKET {
        return Err(Errno::TOOBIG);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
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
    buffer.resize(MAX_PACKET, 0);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket.as_fd(),
        &mut [IoSliceMut::new(buffer)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let message = postcard::from_bytes(&buffer[..received.bytes]).map_err(|_| Errno::BADMSG)?;
    Ok(Some((message, fds)))
}
