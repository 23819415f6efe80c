//! The gate of a network of its own: sockets that listen on its loopback before anything of the tenant's is there, and are
//! given away to whoever serves them outside. What connects to them comes from this network, and nothing else can.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Ipv4Addr, SocketAddrV4, SocketFlags, SocketType};

use crate::gate::{NAMES, PROXY};
use crate::wire;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Makes the sockets and sends them; none stays here.
pub(super) fn open(line: &OwnedFd) -> Result<(), Errno> {
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
