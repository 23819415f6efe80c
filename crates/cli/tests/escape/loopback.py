# A server in the sandbox is reachable from inside: over both loopbacks, by name, and over UNIX sockets of
# both kinds.
# expect: succeeded
import socket
import threading

from probe import check, finish


def echo(listener):
    peer, _ = listener.accept()
    peer.sendall(peer.recv(16)[::-1])
    peer.close()


def talk(what, family, address, connect_to=None):
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen()
    thread = threading.Thread(target=echo, args=(listener,))
    thread.start()
    client = socket.socket(family)
    target = listener.getsockname() if connect_to is None else (connect_to, listener.getsockname()[1])
    client.connect(target)
    client.sendall(b"abc")
    check(what, client.recv(16) == b"cba")
    thread.join()


talk("IPv4", socket.AF_INET, ("127.0.0.1", 0))
talk("all of IPv4, by name", socket.AF_INET, ("0.0.0.0", 0), "localhost")
if "lo" in open("/proc/net/if_inet6").read():
    talk("IPv6", socket.AF_INET6, ("::1", 0))
talk("a UNIX socket with a path", socket.AF_UNIX, "/tmp/socket")
talk("an abstract UNIX socket", socket.AF_UNIX, "\0belljar-test")
a, b = socket.socketpair()
a.sendall(b"x")
check("a pair", b.recv(1) == b"x")
finish(4)
