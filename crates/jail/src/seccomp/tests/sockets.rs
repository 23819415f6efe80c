//! Tests of socket families and socket options.

use super::*;

#[test]
fn only_harmless_socket_families_are_allowed() {
    let (stream, datagram, raw) = (1, 2, 3);
    for family in [libc::AF_INET as u64, libc::AF_INET6 as u64] {
        passes("socket", &[family, stream | 0o2_004_000, 0]); // SOCK_CLOEXEC, SOCK_NONBLOCK
        passes("socket", &[family, stream, 6]);
        passes("socket", &[family, datagram, 17]);
        passes("socket", &[family, datagram, 136]); // UDP-Lite
        passes("socket", &[family | 1 << 32, datagram, 0]);
        fails("socket", &[family, raw, 1], libc::EPERM);
        fails("socket", &[family, raw | 0o2_000_000, 255], libc::EPERM);
        fails("socket", &[family, 10, 0], libc::EPERM); // SOCK_PACKET
        fails("socket", &[family, 5, 132], libc::EPERM); // SCTP
        fails("socket", &[family, stream, 262], libc::EPERM); // MPTCP
        fails("socket", &[family, datagram, 115], libc::EPERM); // L2TP
    }
    passes("socket", &[1, stream, 0]);
    passes("socket", &[1, 5 | 0o2_000_000, 0]);
    passes("socket", &[16, raw, 0]);
    fails("socket", &[16, raw, 12], libc::EPERM); // NETLINK_NETFILTER
    fails("socket", &[16, datagram, 1 << 32 | 16], libc::EPERM);
    for family in [0, 3, 15, 17, 29, 31, 38, 40, 43, 44, 45, 1000] {
        fails("socket", &[family, stream, 0], libc::EAFNOSUPPORT);
    }
    passes("socketpair", &[1, stream, 0]);
    fails("socketpair", &[2, stream, 0], libc::EAFNOSUPPORT);
    fails("socketpair", &[30, stream, 0], libc::EAFNOSUPPORT); // TIPC
}

#[test]
fn commonly_used_socket_options_are_allowed() {
    const HIGH: u64 = 0xdead_0000_0000;
    let (socket, ip, tcp, udp, v6, lite, netlink) = (1, 0, 6, 17, 41, 136, 270);
    let set = [
        (socket, libc::SO_REUSEADDR),
        (socket, libc::SO_REUSEPORT),
        (socket, libc::SO_KEEPALIVE),
        (socket, libc::SO_RCVTIMEO),
        (socket, libc::SO_SNDBUF),
        (socket, libc::SO_LINGER),
        (socket, libc::SO_BROADCAST),
        (socket, libc::SO_PASSCRED),
        (socket, libc::SO_TIMESTAMP),
        (ip, libc::IP_TOS),
        (ip, libc::IP_TTL),
        (ip, libc::IP_RECVERR),
        (ip, libc::IP_MTU_DISCOVER),
        (ip, libc::IP_ADD_MEMBERSHIP),
        (ip, libc::IP_MULTICAST_ALL),
        (v6, libc::IPV6_V6ONLY),
        (v6, libc::IPV6_RECVPKTINFO),
        (v6, libc::IPV6_TCLASS),
        (v6, 29), // IPV6_MULTICAST_ALL
        (tcp, libc::TCP_NODELAY),
        (tcp, libc::TCP_KEEPIDLE),
        (tcp, libc::TCP_KEEPCNT),
        (tcp, libc::TCP_USER_TIMEOUT),
        (tcp, libc::TCP_CORK),
        (tcp, libc::TCP_FASTOPEN_CONNECT),
        (udp, 1),
        (lite, 10),
        (netlink, libc::NETLINK_EXT_ACK),
    ];
    for (level, name) in set {
        passes("setsockopt", &[3, level, name as u64]);
        passes("setsockopt", &[3, HIGH | level, HIGH | name as u64]);
    }
    let read = [
        (socket, libc::SO_ERROR),
        (socket, libc::SO_TYPE),
        (socket, libc::SO_DOMAIN),
        (socket, libc::SO_PROTOCOL),
        (socket, libc::SO_ACCEPTCONN),
        (socket, libc::SO_PEERCRED),
        (tcp, libc::TCP_INFO),
        (tcp, libc::TCP_CONGESTION),
        (ip, libc::IP_MTU),
        (v6, libc::IPV6_MTU),
    ];
    let membership = |(level, name): &(u64, i32)| (*level, *name) == (ip, libc::IP_ADD_MEMBERSHIP);
    for (level, name) in read.into_iter().chain(set.into_iter().filter(|option| !membership(option))) {
        passes("getsockopt", &[3, level, name as u64]);
        passes("getsockopt", &[3, HIGH | level, HIGH | name as u64]);
    }
    for call in ["setsockopt", "getsockopt"] {
        fails(call, &[3, udp, 103], libc::ENOPROTOOPT);
        fails(call, &[3, udp, HIGH | 104], libc::ENOPROTOOPT);
    }
}

#[test]
fn unlisted_socket_options_are_denied() {
    const HIGH: u64 = 0xdead_0000_0000;
    let (socket, ip, tcp, udp, v6) = (1, 0, 6, 17, 41);
    let refused = [
        (socket, libc::SO_ATTACH_FILTER),
        (socket, libc::SO_ATTACH_BPF),
        (socket, libc::SO_ATTACH_REUSEPORT_CBPF),
        (socket, libc::SO_ATTACH_REUSEPORT_EBPF),
        (socket, libc::SO_DETACH_FILTER),
        (socket, libc::SO_LOCK_FILTER),
        (socket, libc::SO_BPF_EXTENSIONS),
        (socket, libc::SO_ZEROCOPY),
        (socket, libc::SO_TXTIME),
        (socket, libc::SO_TIMESTAMPING),
        (socket, libc::SO_PEEK_OFF),
        (socket, libc::SO_BUSY_POLL),
        (socket, libc::SO_MARK),
        (socket, libc::SO_RCVBUFFORCE),
        (socket, 76), // SO_PASSPIDFD: descriptors of processes outside
        (socket, 77), // SO_PEERPIDFD
        (tcp, 31),    // TCP_ULP
        (tcp, libc::TCP_REPAIR),
        (tcp, libc::TCP_REPAIR_OPTIONS),
        (tcp, libc::TCP_MD5SIG),
        (tcp, 35),  // TCP_ZEROCOPY_RECEIVE
        (tcp, 38),  // TCP_AO_ADD_KEY
        (udp, 100), // UDP_ENCAP
        (ip, libc::IP_OPTIONS),
        (ip, libc::IP_TRANSPARENT),
        (ip, libc::IP_XFRM_POLICY),
        (ip, libc::IP_MSFILTER),
        (ip, libc::MCAST_JOIN_GROUP),
        (ip, libc::MCAST_MSFILTER),
        (ip, 64), // IPT_SO_SET_REPLACE, IPT_SO_GET_INFO
        (ip, 65),
        (v6, 1),  // IPV6_ADDRFORM
        (v6, 32), // IPV6_FLOWLABEL_MGR
        (v6, libc::IPV6_RTHDR),
        (v6, libc::IPV6_HOPOPTS),
        (v6, libc::MCAST_JOIN_SOURCE_GROUP),
        (v6, 64), // IP6T_SO_SET_REPLACE
        (v6, 65),
        (58, 1),  // ICMPv6
        (132, 1), // SCTP
        (255, 1), // raw sockets
        (263, 1), // packet sockets
        (279, 1), // AF_ALG
        (282, 1), // TLS
        (284, 1), // MPTCP
        (0xffff, 1),
    ];
    for (level, name) in refused {
        for call in ["setsockopt", "getsockopt"] {
            fails(call, &[3, level, name as u64], libc::EPERM);
            fails(call, &[3, HIGH | level, HIGH | name as u64], libc::EPERM);
        }
    }
}
