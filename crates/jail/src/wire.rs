//! Messages between the provider and the launcher: one packet each, with descriptors attached.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use belljar_model::denial::Denials;
use belljar_model::layer::{Layer, MissingLayer};
use belljar_model::outcome::{Usage, Warmth};
use belljar_model::pool::{ConfinementMismatch, LongestTurns, PoolMetrics};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::spec::{Jail, JailEnding, JailRequest, JailResponse, LauncherSettings, RootTree};
use crate::step::StepFailed;

/// Maximum packet size in bytes; many times what a jail with its environment and commands needs.
pub const MAX_PACKET_BYTES: usize = 192 << 10;
const MAX_FDS: usize = belljar_zygote::message::MAX_FDS;

/// A message to the launcher.
#[derive(Debug, Serialize, Deserialize)]
pub enum LauncherRequest {
    /// Replaces the settings.
    Configure(LauncherSettings),
    /// Returns the state of the warm pools.
    Pools {
        /// Number of the request.
        run: u64,
    },
    /// Registers a root tree, which jails refer to by its number.
    RegisterRoot {
        /// Number of the tree, never reused for another.
        number: u64,
        /// The tree.
        tree: RootTree,
    },
    /// Starts a jail. Attached descriptors: payload, stdin, stdout, stderr, then the result pipe and the
    /// artifacts pipe if the jail has them; for a sandbox's jail, only the guest's socket, then the mount of
    /// its disk, if that is in a file. If its network has proxy sockets, the last descriptor is the socket to
    /// send them to.
    Start {
        /// Number of the run.
        run: u64,
        /// The jail.
        jail: Box<Jail>,
    },
    /// Kills a run.
    Kill {
        /// Number of the run.
        run: u64,
    },
    /// Sends a request to a sandbox's jail.
    AskJail {
        /// Number of the request.
        run: u64,
        /// Number of the run that is the jail.
        jail: u64,
        /// The request.
        request: JailRequest,
    },
}

/// A message from the launcher.
#[derive(Debug, Serialize, Deserialize)]
pub enum LauncherEvent {
    /// The launcher is ready.
    Ready {
        /// Layers that are not available on this host.
        missing: Vec<MissingLayer>,
        /// The reason why jails cannot be paused; `None` if they can.
        freezer_obstacle: Option<String>,
    },
    /// The launcher could not set itself up on this host.
    SetupFailed(StepFailed),
    /// A run ended.
    Ended {
        /// Number of the run.
        run: u64,
        /// How it ended.
        ending: JailEnding,
        /// Its resource usage.
        usage: Usage,
        /// Time from the start request to the end.
        duration: Duration,
        /// Layers that were in force.
        layers: Vec<Layer>,
        /// Whether a waiting interpreter was used.
        warmth: Warmth,
        /// Denials during the run.
        denials: Denials,
    },
    /// State of the warm pools.
    Pools {
        /// Number of the request.
        run: u64,
        /// The pools.
        pools: Vec<PoolMetrics>,
        /// The longest iterations of the event loop.
        turns: Vec<LongestTurns>,
    },
    /// The response of a sandbox's jail.
    JailAnswered {
        /// Number of the request.
        run: u64,
        /// The response.
        response: JailResponse,
    },
    /// A child of a zygote failed its inspection; it and its zygote were killed.
    Mismatch(ConfinementMismatch),
    /// The setup of a run failed; none of its code ran.
    Failed {
        /// Number of the run.
        run: u64,
        /// The failed step.
        failure: StepFailed,
    },
}

/// Sends a message without blocking.
///
/// # Errors
/// `E2BIG` if the message exceeds the maximum packet size, `EAGAIN` if the socket buffer is full, or another
/// error of the socket.
pub fn send<T: Serialize>(socket: BorrowedFd<'_>, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    send_bytes(socket, &postcard::to_allocvec(message).map_err(|_| Errno::INVAL)?, fds)
}

/// Sends a message, and blocks while the socket buffer is full.
pub(crate) fn send_blocking<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let bytes = postcard::to_allocvec(message).map_err(|_| Errno::INVAL)?;
    send_with_flags(socket, &bytes, fds, SendFlags::NOSIGNAL)
}

/// Receives a message of at most 4 KiB. Fails with `EAGAIN` if none is queued.
pub(crate) fn try_receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> Result<Option<(T, Vec<OwnedFd>)>, Errno> {
    let mut buffer = [0; 4 << 10];
    let (len, fds) = try_receive_bytes(socket, &mut buffer)?;
    if len == 0 {
        return Ok(None);
    }
    let message = postcard::from_bytes(&buffer[..len]).map_err(|_| Errno::BADMSG)?;
    Ok(Some((message, fds)))
}

/// Sends raw bytes as a packet, without blocking.
pub(crate) fn send_bytes(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    send_with_flags(socket, bytes, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_with_flags(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    if bytes.len() > MAX_PACKET_BYTES {
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
/// `EAGAIN` if the socket is non-blocking and no message is there, `EBADMSG` if the packet is not a valid
/// message.
pub fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
) -> Result<Option<(T, Vec<OwnedFd>)>, Errno> {
    if buffer.is_empty() {
        buffer.resize(MAX_PACKET_BYTES, 0);
    }
    let (len, fds) = receive_bytes(socket, buffer)?;
    if len == 0 {
        return Ok(None);
    }
    let message = postcard::from_bytes(&buffer[..len]).map_err(|_| Errno::BADMSG)?;
    Ok(Some((message, fds)))
}

/// Receives a message into a buffer of exactly its size, for a process that waits for only one.
///
/// # Errors
/// See [`receive`].
pub(crate) fn receive_one<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> Result<Option<(T, Vec<OwnedFd>)>, Errno> {
    let look = RecvFlags::PEEK | RecvFlags::TRUNC;
    let (_, len) = rustix::net::recv(socket, &mut [0_u8; 1], look)?;
    receive(socket, &mut vec![0; len.max(1)])
}

/// Receives a raw packet, and returns its length, which is 0 at the end of the connection.
pub(crate) fn receive_bytes(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    receive_with_flags(socket, buffer, RecvFlags::CMSG_CLOEXEC)
}

/// Receives a raw packet like [`receive_bytes`]. Fails with `EAGAIN` if none is queued.
pub(crate) fn try_receive_bytes(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    receive_with_flags(socket, buffer, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)
}

fn receive_with_flags(
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
