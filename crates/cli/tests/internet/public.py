"""The servers of the tests' internet: a name server, HTTP on port 8080, HTTPS on 8443, and plain TCP on 9000.

An HTTP answer names the address that was connected to, or is a file below `/files/`. The first line that a client
of the TCP server sends says what the server does.
"""
import hashlib
import http.server
import os
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import threading

FOLDER = sys.argv[1]
PUBLIC, PRIVATE = "203.0.113.1", "10.0.0.5"
NAMES = {
    "public.test": [PUBLIC],
    "two.test": [PRIVATE, PUBLIC],
    "private.test": [PRIVATE],
    "metadata.test": ["169.254.169.254"],
    "host.test": ["203.0.113.2"],
    "loopback.test": ["127.0.0.1"],
}
rebinding_lookups = 0


def addresses(name):
    global rebinding_lookups
    if name != "rebinding.test":
        return NAMES.get(name, [])
    rebinding_lookups += 1
    return [PUBLIC if rebinding_lookups == 1 else PRIVATE]


def answer(query):
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    question, kind = query[12 : at + 5], int.from_bytes(query[at + 1 : at + 3], "big")
    name = ".".join(labels).lower()
    known = name in NAMES or name == "rebinding.test"
    found = addresses(name) if kind == 1 else []
    records = b"".join(b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + socket.inet_aton(each) for each in found)
    flags = b"\x85\x80" if known else b"\x85\x83"
    return query[:2] + flags + b"\0\1" + len(found).to_bytes(2, "big") + b"\0\0\0\0" + question + records


def serve_names():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((PUBLIC, 53))
        while True:
            query, client = server.recvfrom(512)
            server.sendto(answer(query), client)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.split("?")[0]
        if path.startswith("/files/"):
            return self.send_file(os.path.join(FOLDER, path.lstrip("/")))
        body = f"hello from {self.connection.getsockname()[0]}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, path):
        try:
            with open(path, "rb") as file:
                body = file.read()
        except OSError:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    request_queue_size = 128

    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def serve_web(port, certificate=None):
    server = Server(("::", port), Handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


class Plain(socketserver.StreamRequestHandler):
    def handle(self):
        what, *numbers = self.rfile.readline().split()
        if what == b"echo":
            # Everything that was sent, after the client has finished sending.
            self.wfile.write(self.rfile.read())
        elif what == b"send":
            for number in range(int(numbers[0])):
                self.wfile.write(number.to_bytes(8, "big") * 8192)
        elif what == b"receive":
            digest = hashlib.sha256()
            while part := self.rfile.read1(1 << 20):
                digest.update(part)
            self.wfile.write(digest.hexdigest().encode())
        elif what == b"reset":
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.request.detach())
        elif what == b"hold":
            self.rfile.read()
        elif what == b"stall":
            # The connection stays open, and nothing is read.
            threading.Event().wait()


class PlainServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 128
    daemon_threads = True


def ip(*words):
    subprocess.run(["ip", *words], check=True)


ip("link", "set", "lo", "up")
for address in (f"{PUBLIC}/24", f"{PRIVATE}/8", "169.254.169.254/16"):
    ip("addr", "add", address, "dev", "there")
ip("-6", "addr", "add", "fd00::5/64", "dev", "there", "nodad")
ip("link", "set", "there", "up")
serve_web(8080)
threading.Thread(target=PlainServer(("0.0.0.0", 9000), Plain).serve_forever, daemon=True).start()
serve_web(8443, os.path.join(FOLDER, "both.pem"))
threading.Thread(target=serve_names, daemon=True).start()
open(os.path.join(FOLDER, "ready"), "w").close()
threading.Event().wait()
