//! The TUN device of a jail's own network: its programs connect to any host, and a gate outside, which gets the
//! device's descriptor, decides about each connection.
//!
//! PID 1 owns the network namespace and creates the device in it, so nothing is added to the host's network. The
//! device disappears with the namespace, for which the gate must have closed the descriptor, too.

use std::ffi::c_char;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use belljar_model::tun::{ADDRESS_V4, ADDRESS_V6, MTU};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::root_trees::HOST_ROOT;
use crate::sys::check;

const DEVICE_FILE: &str = "/dev/net/tun";
const NAME: &[u8; 4] = b"tun0";

/// Returns whether this process may open TUN devices. Creating one takes a network namespace of one's own, which
/// a jail has.
pub fn is_available() -> bool {
    open_device_file("").is_ok()
}

/// Opens the device file of the host, whose root is at `root`.
fn open_device_file(root: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(format!("{root}{DEVICE_FILE}"), flags, Mode::empty())
}

/// Creates the device in the current network namespace, with an address and a default route. The host is where
/// the launcher sees it.
pub(crate) fn create() -> Result<OwnedFd, Errno> {
    let device = open_device_file(HOST_ROOT)?;
    let mut request = interface_request();
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    interface_ioctl(&device, libc::TUNSETIFF, &mut request)?;
    // The kernel removes the device with the namespace, in the background. Otherwise closing the descriptor
    // would remove it, and wait for that.
    let keep: libc::c_ulong = 1;
    // SAFETY: takes a number.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETPERSIST, keep) }.into())?;
    let socket = datagram_socket(AddressFamily::INET)?;
    request.ifr_ifru.ifru_mtu = i32::from(MTU);
    interface_ioctl(&socket, libc::SIOCSIFMTU, &mut request)?;
    request.ifr_ifru.ifru_addr = socket_address(ADDRESS_V4);
    interface_ioctl(&socket, libc::SIOCSIFADDR, &mut request)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    interface_ioctl(&socket, libc::SIOCSIFFLAGS, &mut request)?;
    add_default_route(&socket)?;
    match add_ipv6(&socket) {
        // This kernel has no IPv6, or not for this device.
        Ok(()) | Err(Errno::AFNOSUPPORT | Errno::ACCESS | Errno::PERM) => Ok(device),
        Err(errno) => Err(errno),
    }
}

fn datagram_socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

/// Returns a request about the device.
fn interface_request() -> libc::ifreq {
    // SAFETY: an all-zero ifreq is a valid value of this plain struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(NAME) {
        *to = *from as c_char;
    }
    request
}

fn interface_ioctl(fd: impl AsFd, operation: libc::c_ulong, request: &mut libc::ifreq) -> Result<(), Errno> {
    // SAFETY: the kernel reads and writes one ifreq for these requests, and gets one that lives across the call.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), operation, &raw mut *request) }.into()).map(drop)
}

/// Returns an IPv4 address as the kernel's requests have it.
fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let [a, b, c, d] = address.octets().map(|byte| byte as c_char);
    // The port comes first.
    let sa_data = [0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0];
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data }
}

fn add_default_route(socket: &OwnedFd) -> Result<(), Errno> {
    let mut name = [0; NAME.len() + 1];
    for (to, from) in name.iter_mut().zip(NAME) {
        *to = *from as c_char;
    }
    let any = socket_address(Ipv4Addr::UNSPECIFIED);
    let route = RouteRequest {
        pad1: 0,
        destination: any,
        gateway: any,
        mask: any,
        flags: libc::RTF_UP,
        pad2: 0,
        pad3: 0,
        pad4: std::ptr::null_mut(),
        metric: 0,
        device: name.as_mut_ptr(),
        mtu: 0,
        window: 0,
        initial_rtt: 0,
    };
    // SAFETY: the kernel reads one rtentry and the name in it, which both live across the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT, &raw const route) }.into()).map(drop)
}

/// `struct rtentry` of the kernel.
#[repr(C)]
struct RouteRequest {
    pad1: libc::c_ulong,
    destination: libc::sockaddr,
    gateway: libc::sockaddr,
    mask: libc::sockaddr,
    flags: libc::c_ushort,
    pad2: libc::c_short,
    pad3: libc::c_ulong,
    pad4: *mut libc::c_void,
    metric: libc::c_short,
    device: *mut c_char,
    mtu: libc::c_ulong,
    window: libc::c_ulong,
    initial_rtt: libc::c_ushort,
}

/// `struct in6_rtmsg` of the kernel.
#[repr(C)]
struct RouteRequestV6 {
    destination: [u8; 16],
    source: [u8; 16],
    gateway: [u8; 16],
    kind: u32,
    destination_bits: u16,
    source_bits: u16,
    metric: u32,
    info: libc::c_ulong,
    flags: u32,
    interface: libc::c_int,
}

/// Adds the IPv6 address and default route.
fn add_ipv6(socket: &OwnedFd) -> Result<(), Errno> {
    let mut request = interface_request();
    interface_ioctl(socket, libc::SIOCGIFINDEX, &mut request)?;
    // SAFETY: after this request, the kernel has written the index.
    let index = unsafe { request.ifr_ifru.ifru_ifindex };
    let socket = datagram_socket(AddressFamily::INET6)?;
    let address = libc::in6_ifreq {
        ifr6_addr: libc::in6_addr { s6_addr: ADDRESS_V6.octets() },
        ifr6_prefixlen: 128,
        ifr6_ifindex: index,
    };
    // SAFETY: for an IPv6 socket the kernel reads one in6_ifreq, which lives across the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFADDR, &raw const address) }.into())?;
    let route = RouteRequestV6 {
        destination: [0; 16],
        source: [0; 16],
        gateway: [0; 16],
        kind: 0,
        destination_bits: 0,
        source_bits: 0,
        metric: 1,
        info: 0,
        flags: libc::RTF_UP.into(),
        interface: index,
    };
    // SAFETY: for an IPv6 socket the kernel reads one in6_rtmsg, which lives across the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT, &raw const route) }.into()).map(drop)
}
