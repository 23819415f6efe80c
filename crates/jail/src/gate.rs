//! The gate of a network of its own: sockets that listen on its loopback before anything of the tenant's is there, and are
//! given away to whoever serves them outside. What connects to them comes from this network, and nothing else can.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Ipv4Addr, SocketAddrV4, SocketFlags, SocketType};

use crate::wire;

/// The port inside for HTTP and SOCKS5.
pub const PROXY: u16 = 3128;
/// The port inside for DNS.
pub const NAMES: u16 = 53;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Makes the sockets inside and sends them; none stays here.
///
/// # Errors
/// What the kernel says.
pub fn open(line: impl AsFd) -> Result<(), Errno> {
    let sockets = [
        bound(SocketType::STREAM, PROXY)?,
        bound(SocketType::STREAM, NAMES)?,
        bound(SocketType::DGRAM, NAMES)?,
    ];
    sockets[..2].iter().try_for_each(|socket| rustix::net::listen(socket, BACKLOG))?;
    wire::send_bytes(line.as_fd(), b"gate", &sockets.each_ref().map(AsFd::as_fd))
}

fn bound(kind: SocketType, port: u16) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    Ok(socket)
}

/// Receives the sockets outside: the proxy's, and for names TCP and UDP.
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
