//! Proxy sockets of a jail's own network: they listen on its loopback before any of the tenant's code runs,
//! and are passed to a proxy outside. Only this network can connect to them.
//!
//! The clone that makes PID 1 also makes the network namespace, so PID 1 owns it and may listen on the port
//! of DNS. It sends the sockets over a socket that came with the start request. No interface, address or
//! route is ever added to the namespace.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Ipv4Addr, SocketAddrV4, SocketFlags, SocketType};

use crate::wire;

/// Port in the jail for HTTP and SOCKS5.
pub const PROXY_PORT: u16 = 3128;
/// Port in the jail for DNS.
pub const DNS_PORT: u16 = 53;
/// Maximum number of connections waiting to be accepted.
const BACKLOG: i32 = 128;

/// Creates the sockets in the jail and sends them; no copy is kept.
///
/// # Errors
/// The errno of the failed call.
pub fn create_and_send(line: impl AsFd) -> Result<(), Errno> {
    let sockets = [
        bind_socket(SocketType::STREAM, PROXY_PORT)?,
        bind_socket(SocketType::STREAM, DNS_PORT)?,
        bind_socket(SocketType::DGRAM, DNS_PORT)?,
    ];
    sockets[..2].iter().try_for_each(|socket| rustix::net::listen(socket, BACKLOG))?;
    wire::send_bytes(line.as_fd(), b"gate", &sockets.each_ref().map(AsFd::as_fd))
}

fn bind_socket(kind: SocketType, port: u16) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    Ok(socket)
}

/// Receives the sockets outside the jail: the proxy's, then those for DNS over TCP and UDP.
///
/// # Errors
/// `EAGAIN` if they have not been sent yet, `EPIPE` if they will not be sent.
pub fn receive(line: impl AsFd) -> Result<[OwnedFd; 3], Errno> {
    let (len, sockets) = wire::try_receive_bytes(line.as_fd(), &mut [0; 8])?;
    if len == 0 {
        return Err(Errno::PIPE);
    }
    sockets.try_into().map_err(|_| Errno::BADMSG)
}
