//! Socket options that programs may set and read, by level.
//!
//! The lists contain what Python, Node.js, Go, Java, .NET, curl, gRPC, QUIC stacks, glibc's resolver and
//! databases use. All other options are EPERM, and named in the result. Among those are: protocols stacked on
//! TCP (`TCP_ULP`), socket filters (`SO_ATTACH_*`), the firewall's tables (64 and up of both IP levels),
//! manually restored connections (`TCP_REPAIR`), segment keys (`TCP_MD5SIG`, `TCP_AO`), encapsulation
//! (`UDP_ENCAP`), pages shared with the kernel (`SO_ZEROCOPY`, `TCP_ZEROCOPY_RECEIVE`), scheduled sending
//! (`SO_TXTIME`), hardware timestamps, IPsec policies, IP options and extension headers, and the less common
//! forms of multicast.
//!
//! The numbers are the kernel's and the same on both architectures. Each list ascends.

use super::checks::{DecisionTree, load, one_of};

const SOCKET: u32 = libc::SOL_SOCKET as u32;
const IP: u32 = libc::IPPROTO_IP as u32;
const IPV6: u32 = libc::IPPROTO_IPV6 as u32;
const TCP: u32 = libc::IPPROTO_TCP as u32;
const UDP: u32 = libc::IPPROTO_UDP as u32;
const UDP_LITE: u32 = libc::IPPROTO_UDPLITE as u32;
const NETLINK: u32 = 270;

/// Indexes of the level and option arguments.
const LEVEL: u8 = 1;
const NAME: u8 = 2;
const ALL: u32 = u32::MAX;

/// UDP_SEGMENT, UDP_GRO: QUIC stacks probe for them and work without if the answer is that of an older
/// kernel.
const BATCHED_DATAGRAMS: &[u32] = &[103, 104];

/// Options that may be set, by level.
#[rustfmt::skip]
const SETTABLE: &[(u32, &[u32])] = &[
    (SOCKET, &[
        // REUSEADDR; DONTROUTE BROADCAST SNDBUF RCVBUF KEEPALIVE OOBINLINE;
        // PRIORITY LINGER BSDCOMPAT REUSEPORT PASSCRED
        2, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16,
        // RCVLOWAT SNDLOWAT RCVTIMEO SNDTIMEO; TIMESTAMP TIMESTAMPNS
        18, 19, 20, 21, 29, 35,
    ]),
    (IP, &[
        // TOS TTL; PKTINFO; MTU_DISCOVER RECVERR RECVTTL RECVTOS; BIND_ADDRESS_NO_PORT
        1, 2, 8, 10, 11, 12, 13, 24,
        // MULTICAST_IF MULTICAST_TTL MULTICAST_LOOP ADD_MEMBERSHIP DROP_MEMBERSHIP; MULTICAST_ALL (Java clears it on
        // every socket)
        32, 33, 34, 35, 36, 49,
    ]),
    (IPV6, &[
        // UNICAST_HOPS MULTICAST_IF MULTICAST_HOPS MULTICAST_LOOP JOIN_GROUP LEAVE_GROUP; MTU_DISCOVER; RECVERR V6ONLY
        16, 17, 18, 19, 20, 21, 23, 25, 26,
        // MULTICAST_ALL; RECVPKTINFO; RECVHOPLIMIT; DONTFRAG; RECVTCLASS TCLASS
        29, 49, 51, 62, 66, 67,
    ]),
    (TCP, &[
        // NODELAY MAXSEG CORK KEEPIDLE KEEPINTVL KEEPCNT SYNCNT LINGER2 DEFER_ACCEPT WINDOW_CLAMP
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10,
        // QUICKACK CONGESTION (no module is loaded for it); USER_TIMEOUT; FASTOPEN; NOTSENT_LOWAT; FASTOPEN_CONNECT; INQ
        12, 13, 18, 23, 25, 30, 36,
    ]),
    // UDP_CORK
    (UDP, &[1]),
    // UDPLITE_SEND_CSCOV UDPLITE_RECV_CSCOV, which CPython's own tests set
    (UDP_LITE, &[10, 11]),
    // NETLINK_CAP_ACK NETLINK_EXT_ACK NETLINK_GET_STRICT_CHK, which `ip` sets
    (NETLINK, &[10, 11, 12]),
];

/// Options that may be read, by level: those that may be set, and properties of the socket.
#[rustfmt::skip]
const READABLE: &[(u32, &[u32])] = &[
    (SOCKET, &[
        2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16,
        // PEERCRED; RCVLOWAT SNDLOWAT RCVTIMEO SNDTIMEO; PEERNAME TIMESTAMP ACCEPTCONN PEERSEC; TIMESTAMPNS
        17, 18, 19, 20, 21, 28, 29, 30, 31, 35,
        // PROTOCOL DOMAIN; MEMINFO INCOMING_NAPI_ID COOKIE; PEERGROUPS
        38, 39, 55, 56, 57, 59,
    ]),
    // As above, and MTU
    (IP, &[1, 2, 8, 10, 11, 12, 13, 14, 24, 32, 33, 34, 49]),
    (IPV6, &[16, 17, 18, 19, 23, 24, 25, 26, 29, 49, 51, 62, 66, 67]),
    // As above, and INFO, CC_INFO
    (TCP, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 18, 23, 25, 26, 30, 36]),
    (UDP, &[1]),
    (UDP_LITE, &[10, 11]),
    (NETLINK, &[10, 11, 12]),
];

pub(super) fn setsockopt_tree() -> DecisionTree {
    by_level(SETTABLE)
}

pub(super) fn getsockopt_tree() -> DecisionTree {
    by_level(READABLE)
}

fn by_level(levels: &'static [(u32, &'static [u32])]) -> DecisionTree {
    let eperm = || DecisionTree::Deny(libc::EPERM);
    let level = |otherwise: DecisionTree, (level, names): &'static (u32, &'static [u32])| {
        let unlisted = match *level {
            UDP => one_of(BATCHED_DATAGRAMS, DecisionTree::Deny(libc::ENOPROTOOPT), eperm()),
            _ => eperm(),
        };
        let listed = load(NAME, ALL, one_of(names, DecisionTree::Allow, unlisted));
        one_of(std::slice::from_ref(level), listed, otherwise)
    };
    load(LEVEL, ALL, levels.iter().fold(eperm(), level))
}
