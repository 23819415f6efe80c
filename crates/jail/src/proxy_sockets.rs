//! The gate's descriptors of a jail's own network: sockets that listen on its loopback, or a TUN device. They exist
//! before any of the tenant's code runs, and are passed to a gate outside.
//!
//! The clone that makes PID 1 also makes the network namespace, so PID 1 owns it and may listen on the port
//! of DNS, and create the device. It sends the descriptors over a socket that came with the start request.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Ipv4Addr, SocketAddrV4, SocketFlags, SocketType};

use crate::{tun, wire};

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
    send(line, listen_socket(PROXY_PORT)?)
}

/// Creates a TUN device in place of the proxy's socket.
///
/// # Errors
/// The errno of the failed call.
pub(crate) fn create_with_device_and_send(line: impl AsFd) -> Result<(), Errno> {
    send(line, tun::create()?)
}

/// Sends the entry of connections, with sockets for DNS over TCP and UDP.
fn send(line: impl AsFd, entry: OwnedFd) -> Result<(), Errno> {
    let fds = [entry, listen_socket(DNS_PORT)?, bind_socket(SocketType::DGRAM, DNS_PORT)?];
    wire::send_bytes(line.as_fd(), b"gate", &fds.each_ref().map(AsFd::as_fd))
}

fn listen_socket(port: u16) -> Result<OwnedFd, Errno> {
    let socket = bind_socket(SocketType::STREAM, port)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn bind_socket(kind: SocketType, port: u16) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    Ok(socket)
}

/// Receives them outside the jail: the proxy's socket or the device, then the sockets for DNS over TCP and UDP.
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
