//! The gate of a jail's network, from outside: where it listens, and how its sockets arrive.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::wire;

/// The port inside for HTTP and SOCKS5.
pub const PROXY: u16 = 3128;
/// The port inside for DNS.
pub const NAMES: u16 = 53;

/// Receives the sockets: the proxy's, and for names TCP and UDP.
///
/// # Errors
/// `EAGAIN` where they have not come yet, `EPIPE` where they will not.
pub fn receive(line: impl AsFd) -> Result<[OwnedFd; 3], Errno> {
    let (len, sockets) = wire::receive_bytes_now(line.as_fd(), &mut [0; 8])?;
    if len == 0 {
        return Err(Errno::PIPE);
    }
    sockets.try_into().map_err(|_| Errno::BADMSG)
}
