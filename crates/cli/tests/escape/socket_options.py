# Socket options that programs use can be set and read; upper-layer protocols, filters and other kernel
# machinery cannot.
# expect: succeeded
import errno
import socket

from probe import check, finish

SOCKET, IP, TCP, UDP, IPV6 = 1, 0, 6, 17, 41
# SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF and _EBPF, SO_DETACH_FILTER, SO_LOCK_FILTER, SO_ZEROCOPY, SO_TXTIME,
# SO_TIMESTAMPING; TCP_ULP, TCP_REPAIR, TCP_MD5SIG, TCP_AO_ADD_KEY; UDP_ENCAP; IP_OPTIONS, MCAST_JOIN_GROUP, firewalls.
REFUSED = (
    [(SOCKET, name) for name in (26, 50, 51, 52, 27, 44, 60, 61, 37, 65)]
    + [(TCP, name) for name in (31, 19, 20, 21, 22, 14, 32, 38)]
    + [(UDP, 100)]
    + [(IP, name) for name in (4, 42, 46, 64, 65)]
    + [(IPV6, name) for name in (1, 32, 54, 57, 64, 65)]
    + [(level, 1) for level in (58, 132, 255, 263, 279, 282, 284)]
)
ALLOWED = [
    (SOCKET, socket.SO_REUSEADDR), (SOCKET, socket.SO_KEEPALIVE), (SOCKET, socket.SO_RCVBUF), (SOCKET, socket.SO_SNDBUF),
    (TCP, socket.TCP_NODELAY), (TCP, socket.TCP_KEEPIDLE), (TCP, socket.TCP_USER_TIMEOUT), (IP, socket.IP_TTL),
]

stream, datagram, six = socket.socket(), socket.socket(type=socket.SOCK_DGRAM), socket.socket(socket.AF_INET6)


def refused(what, attempt, *arguments):
    """Checks that a call does not reach the kernel, which would return other errors."""
    try:
        attempt(*arguments)
        check(what, False)
    except OSError as error:
        check(what, error.errno in (errno.EPERM, errno.ENOSYS), error)


for at in (stream, datagram, six):
    for level, name in REFUSED:
        refused(f"set {level} {name}", at.setsockopt, level, name, b"tls\0")
        refused(f"read {level} {name}", at.getsockopt, level, name, 64)
for level, name in ALLOWED:
    stream.setsockopt(level, name, 64)
    check(f"{level} {name}", stream.getsockopt(level, name) > 0)
six.setsockopt(IPV6, socket.IPV6_V6ONLY, 1)
datagram.setsockopt(IP, socket.IP_MULTICAST_TTL, 2)
check("error", stream.getsockopt(SOCKET, socket.SO_ERROR) == 0)
finish(200)
