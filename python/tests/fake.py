"""A fake server on a real socket whose responses a test defines."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RESULT: dict[str, Any] = {
    "id": "exec_1",
    "status": "succeeded",
    "exit_code": 0,
    "signal": None,
    "limit": None,
    "stdout": "42\n",
    "stderr": "",
    "stdout_truncated": False,
    "stderr_truncated": False,
    "result": {"present": False, "value": None},
    "artifacts": [],
    "error": None,
    "findings": [],
    "dependencies": {"packages": [], "cache": "none", "install_ms": 0},
    "duration_ms": 1.0,
    "usage": {"cpu_ms": 1.0, "peak_memory_bytes": 1, "processes_peak": 1},
    "receipt": None,
    "metadata": {},
}

Answer = Callable[["Handler", int], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: Answer
    seen: list[dict[str, str]]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.seen.append({name.lower(): value for name, value in self.headers.items()})
        self.__class__.answer(self, len(self.seen))

    do_GET = do_POST

    def reply(self, status: int, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, code: str, **headers: str) -> None:
        self.reply(status, {"error": {"code": code, "message": "no", "request_id": "req_1"}}, **headers)

    def disconnect(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Starts a fake server; yields its URL and a list that collects the headers of every request."""
    seen: list[dict[str, str]] = []
    handler = type("FakeHandler", (Handler,), {"answer": staticmethod(answer), "seen": seen})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
