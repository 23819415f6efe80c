"""Machines for test services: each has its own namespaces, root and daemon. They do not really isolate."""

import ctypes
import fcntl
import json
import os
import secrets
import socket
import socketserver
import struct
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

BIND, REC, PRIVATE, READ_ONLY, REMOUNT = 4096, 16384, 1 << 18, 1, 32
OWN = {"proc", "tmp", "home", "root", "run", "workspace", "lost+found"}


class Handler(BaseHTTPRequestHandler):
    """Answers in JSON and reads plain and chunked bodies."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_words):
        pass

    def address_string(self):
        return "test"

    @property
    def url(self):
        return urlsplit(self.path)

    @property
    def query(self):
        return {name: values[0] for name, values in parse_qs(self.url.query, keep_blank_values=True).items()}

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, status, value=None, **headers):
        content = b"" if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Type", headers.pop("kind", "application/json"))
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_head()
        self.wfile.write(content)

    def end_head(self):
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def begin_chunks(self, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_head()

    def chunk(self, content):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
        self.wfile.flush()


class Machine:
    """A machine of a test service."""

    def __init__(self, script):
        self.id = secrets.token_hex(10)
        self.folder = tempfile.TemporaryDirectory(prefix="belljar-lent-")
        self.made = time.time()
        words = ["unshare", "-U", "-r", "-m", "-p", "-n", "-i", "-u", "-f", "--kill-child"]
        words += [sys.executable, script, "inside", self.folder.name]
        # The daemon exits when its stdin closes, and everything on the machine with it.
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != b"ready\n":
            raise RuntimeError("no machine")

    def end(self):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.folder.cleanup()

    def relay(self, asked, body):
        """Forwards a request to the daemon and copies the response until the daemon closes the connection."""
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(self.folder.name + "/daemon")
            head = [f"{asked.command} {asked.path} HTTP/1.1"]
            kept = ((name, text) for name, text in asked.headers.items() if name.lower() not in HOP)
            head += [f"{name}: {text}" for name, text in kept]
            head += ["Connection: close", f"Content-Length: {len(body)}", "", ""]
            line.sendall("\r\n".join(head).encode() + body)
            while part := line.recv(1 << 16):
                asked.wfile.write(part)
        except OSError:
            pass
        finally:
            asked.close_connection = True
            line.close()


HOP = {"connection", "content-length", "transfer-encoding"}


class Front(ThreadingHTTPServer):
    """A service: its machines and injected faults."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.lock = threading.RLock()
        self.machines = {}
        self.faults = []
        self.seen = []

    def fault(self, method, path):
        """Returns the fault injected for this request, if any."""
        with self.lock:
            self.seen.append(f"{method} {path}")
            for fault in self.faults:
                if fault["at"] in f"{method} {path}":
                    self.faults.remove(fault)
                    return fault
        return None

    def end(self, machine_id):
        with self.lock:
            machine = self.machines.pop(machine_id, None)
        if machine:
            machine.end()
        return machine is not None


class FrontHandler(Handler):
    """Handles requests of tests besides those of clients."""

    def serve(self):
        server, path = self.server, self.url.path
        if path == "/test":
            if self.command == "POST":
                server.faults.append(json.loads(self.body()))
            with server.lock:
                return self.answer(200, {"machines": sorted(server.machines), "seen": server.seen})
        fault = server.fault(self.command, self.path)
        if fault and "status" in fault:
            self.body()
            headers = fault.get("headers", {})
            return self.answer(fault["status"], {"code": fault["status"], "message": fault.get("message", "")}, **headers)
        if fault:
            # The request is executed, but the response is dropped.
            self.wfile = open(os.devnull, "wb")
            self.close_connection = True
        return self.control()

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = serve


def serve(handler):
    """Serves until stdin closes."""
    server = Front(handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    for machine in list(server.machines):
        server.end(machine)


def inside(folder, handler):
    """Turns this process into the daemon of a machine."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source, target, kind, flags, data=None):
        words = [text.encode() if text else None for text in (source, target, kind)]
        if libc.mount(*words, flags, data.encode() if data else None):
            raise OSError(ctypes.get_errno(), f"mount {target}")

    server = socketserver.ThreadingUnixStreamServer(folder + "/daemon", handler)
    server.daemon_threads = True
    mount(None, "/", None, REC | PRIVATE)
    root = folder + "/root"
    os.mkdir(root)
    mount("root", root, "tmpfs", 0, "mode=755")
    for name in set(os.listdir("/")) - OWN:
        source, target = f"/{name}", f"{root}/{name}"
        if os.path.islink(source):
            os.symlink(os.readlink(source), target)
        elif os.path.isdir(source):
            os.mkdir(target)
            mount(source, target, None, BIND | REC)
            if name != "dev":
                try:
                    mount(None, target, None, BIND | REMOUNT | READ_ONLY)
                except OSError:
                    pass
    for name, mode in [("tmp", 0o1777), ("root", 0o700), ("home/user", 0o755), ("proc", 0o555), ("run", 0o755)]:
        os.makedirs(f"{root}/{name}")
        os.chmod(f"{root}/{name}", mode)
    with open(f"{root}/run/passwd", "w", encoding="ascii") as file:
        file.write("root:x:0:0:root:/root:/bin/sh\nuser:x:0:0:user:/home/user:/bin/bash\n")
    mount(f"{root}/run/passwd", f"{root}/etc/passwd", None, BIND)
    if os.path.isdir(f"{root}/dev/shm"):
        mount("shm", f"{root}/dev/shm", "tmpfs", 0, "mode=1777")
    try:
        mount("proc", f"{root}/proc", "proc", 0)
    except OSError:
        mount("/proc", f"{root}/proc", None, BIND | REC)
    # Brings the loopback interface up.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        fcntl.ioctl(line, 0x8914, struct.pack("16sH14x", b"lo", 0x41))
    os.chroot(root)
    os.chdir("/")
    for name in list(os.environ):
        del os.environ[name]
    os.environ.update(PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", HOME="/home/user", USER="user")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.buffer.read()
    os._exit(0)

