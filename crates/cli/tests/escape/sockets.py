# UNIX, TCP and UDP sockets and a list of interfaces are available; no other family, no raw socket, no route
# out.
# expect: succeeded
import errno
import socket

from probe import check, fails, finish

UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
for family in [n for n in range(0, 64) if n not in (UNIX, INET, INET6, NETLINK)]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind, 0)
            check(f"family {family} kind {kind}", False)
        except OSError as error:
            # Any other error would come from the kernel, so the call would have reached it.
            check(f"family {family} kind {kind}", error.errno in (errno.EAFNOSUPPORT, errno.EPERM), error)
for family in (INET, INET6):
    for protocol in (0, 1, 2, 6, 17, 47, 58, 89, 132, 255):
        fails(f"raw {family} {protocol}", socket.socket, family, socket.SOCK_RAW, protocol)
    for protocol in (1, 33, 58, 115, 132, 262):
        fails(f"datagram {family} {protocol}", socket.socket, family, socket.SOCK_DGRAM, protocol)
        fails(f"stream {family} {protocol}", socket.socket, family, socket.SOCK_STREAM, protocol)
    fails(f"packet {family}", socket.socket, family, 10, 0)
    fails(f"pair {family}", socket.socketpair, family)
for protocol in range(1, 24):
    fails(f"netlink {protocol}", socket.socket, NETLINK, socket.SOCK_RAW, protocol)

# A gate has a name server, and where the host has TUN devices, one leads to it.
gate = "nameserver" in open("/etc/resolv.conf").read()
names = [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]]
device = gate and "tun0" in names
ways = {"lo", "tun0"} if device else {"lo"}
check("loopback is the only interface with another way", set(names) <= ways | {"sit0", "tunl0", "ip6tnl0", "gre0"}, names)
check("there is no other route", len(open("/proc/net/route").readlines()) == 1 + device)


def exchange(address):
    datagram = socket.socket(INET, socket.SOCK_DGRAM)
    datagram.settimeout(20)
    datagram.connect((address, 9))
    datagram.send(b"x")
    datagram.recv(1)


for address in ("169.254.169.254", "10.0.0.1", "172.17.0.1", "192.168.0.1") + (() if device else ("1.1.1.1",)):
    out = socket.socket()
    out.settimeout(20)
    fails(f"connect to {address}", out.connect, (address, 80))
    fails(f"send to {address}", exchange, address)
if gate:
    # With a gate, its name server is the only one, and knows no private name.
    for name in ("localhost.localdomain", "metadata.google.internal"):
        fails(f"find {name}", socket.getaddrinfo, name, 80)
else:
    fails("find a name", socket.getaddrinfo, "example.com", 80)
finish(200)
