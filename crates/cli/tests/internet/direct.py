"""Connections that a program opens by itself, one line for each kind. Nothing here knows of a proxy."""
import hashlib
import os
import socket
import sys
import threading
import urllib.request

PUBLIC = "203.0.113.1"


def connect(host, port=9000):
    return socket.create_connection((host, port), 60)


def ask(line, host="public.test"):
    client = connect(host)
    client.sendall(line.encode() + b"\n")
    return client


def read_all(client):
    parts = []
    while part := client.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def attempt(what, *arguments):
    try:
        return what(*arguments)
    except OSError as error:
        return type(error).__name__


def environment():
    return sorted(name for name in os.environ if "proxy" in name.lower() or name == "NODE_OPTIONS")


def http(host):
    return urllib.request.urlopen(f"http://{host}:8080/", timeout=60).read().decode().strip()


def half_close():
    client, sent = ask("echo"), os.urandom(3_000_001)
    threading.Thread(target=lambda: (client.sendall(sent), client.shutdown(socket.SHUT_WR))).start()
    return read_all(client) == sent


def reset():
    return attempt(read_all, ask("reset"))


def peer_close():
    return read_all(ask("nothing"))


def own_reset():
    client = ask("hold")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, (1).to_bytes(4, sys.byteorder) + bytes(4))
    client.close()
    return http("public.test") != ""


def download(chunks):
    client, digest, length = ask(f"send {chunks}"), hashlib.sha256(), 0
    while part := client.recv(1 << 18):
        digest.update(part)
        length += len(part)
    expected = hashlib.sha256()
    for number in range(chunks):
        expected.update(number.to_bytes(8, "big") * 8192)
    return length == chunks << 16 and digest.digest() == expected.digest()


def upload(chunks):
    client, digest = ask("receive"), hashlib.sha256()
    for number in range(chunks):
        part = number.to_bytes(8, "little") * 8192
        digest.update(part)
        client.sendall(part)
    client.shutdown(socket.SHUT_WR)
    return read_all(client).decode() == digest.hexdigest()


def backpressure():
    """Sends to a server that does not read: what is buffered on the way is bounded."""
    client, sent = ask("stall"), 0
    client.settimeout(3)
    try:
        while sent < 256 << 20:
            sent += client.send(bytes(1 << 16))
    except TimeoutError:
        return sent < 64 << 20
    return f"{sent} bytes without end"


def sequential(count):
    for _ in range(count):
        client = ask("echo")
        client.sendall(b"x")
        client.shutdown(socket.SHUT_WR)
        if read_all(client) != b"x":
            return False
        client.close()
    return True


def parallel(count):
    """Holds that many connections open at once, and uses each."""
    clients = [ask("echo") for _ in range(count)]
    for client in clients:
        client.sendall(b"y")
        client.shutdown(socket.SHUT_WR)
    return all(read_all(client) == b"y" for client in clients)


def datagram(host, port):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(60)
        client.connect((host, port))
        client.send(b"x")
        return client.recv(16)


def query(name, server):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(60)
        labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
        client.sendto(b"\x12\x34\1\0\0\1\0\0\0\0\0\0" + labels + b"\0\0\1\0\1", (server, 53))
        answer = client.recv(512)
        return answer[3] & 15, socket.inet_ntoa(answer[-4:]) if answer[7] else ""


def show(what, result):
    print(f"{what}: {result}", flush=True)


show("environment", environment())
for host in ("public.test", "two.test", PUBLIC):
    show(f"http {host}", http(host))
for host in ("10.0.0.5", "169.254.169.254", "fd00::5", "203.0.113.2", "::ffff:10.0.0.5", "64:ff9b::a00:5", "198.18.77.7"):
    show(f"refused {host}", attempt(connect, host, 8080))
for host in ("private.test", "metadata.test", "loopback.test", "missing.test", "host.test", "rebinding.test"):
    show(f"name {host}", attempt(connect, host, 8080))
show("closed port", attempt(connect, "public.test", 1))
show("datagram", attempt(datagram, PUBLIC, 9999))
show("datagram by IPv6", attempt(datagram, "2001:db8::1", 443))
show("any name server", query("public.test", "192.0.2.53"))
show("any name server, private name", query("private.test", "192.0.2.53"))
show("half close", half_close())
show("reset", reset())
show("peer close", peer_close())
show("own reset", own_reset())
show("download", download(1_600))
show("upload", upload(1_600))
show("sequential", sequential(1_000))
show("parallel", parallel(64))
# Last, because its connection stays open.
show("backpressure", backpressure())
