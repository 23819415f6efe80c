"""Selects the server: a named one, or a private one of this process.

A private server listens on a free loopback port, requires a key that only this process knows, and stores nothing
permanently. It ends when its standard input closes. This process holds the other end, so the server ends with it, even
after ``kill -9``. A forked child closes its copy and starts its own server when it needs one.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import selectors
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import IO

from ._binary import find_binary
from .errors import NotStarted

log = logging.getLogger("belljar")
# Without a handler, Python would print the private server's log to the standard error of the program.
log.addHandler(logging.NullHandler())

_START_SECONDS = 60.0
_END_SECONDS = 10.0
_READY = b"listening on "
#: Variables that are meant for other servers, or would make this one serve TLS for another name.
_REMOVED_VARIABLES = ("BELLJAR_SERVER", "BELLJAR_API_KEY", "BELLJAR_TLS_CERT", "BELLJAR_TLS_KEY", "BELLJAR_DATA_DIR")


@dataclass(frozen=True)
class Server:
    """Address and API key of a server."""

    url: str
    key: str | None = field(repr=False)


def named(url: str | None, key: str | None) -> Server | None:
    """Returns the server named by the arguments or the environment, if any."""
    url = url or os.environ.get("BELLJAR_SERVER")
    if not url:
        if key:
            raise ValueError("api_key needs a server; pass server='http://HOST:7117' or set BELLJAR_SERVER")
        return None
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"server: {url!r} is not a URL; write, for example, http://127.0.0.1:7117")
    return Server(url.rstrip("/"), key or os.environ.get("BELLJAR_API_KEY"))


class _Private:
    """The private server process."""

    def __init__(self) -> None:
        key = secrets.token_urlsafe(32)
        environment = {name: value for name, value in os.environ.items() if name not in _REMOVED_VARIABLES}
        environment.setdefault("BELLJAR_LOG", "warn")
        self.process = subprocess.Popen(
            [find_binary(), "serve", "--temporary", "--allow-degraded", "--listen", "127.0.0.1:0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Unbuffered: a forked child must be able to close these, whatever another thread was doing.
            bufsize=0,
            env={**environment, "BELLJAR_ADMIN_KEY": key},
            # Ctrl-C in a terminal must reach this process only.
            start_new_session=True,
        )
        self._last_lines: deque[str] = deque(maxlen=20)
        self._log_thread = threading.Thread(target=self._forward_log, name="belljar-log", daemon=True)
        self._log_thread.start()
        try:
            self.server = Server(self._address(), key)
        except BaseException:
            self.end()
            raise

    def _forward_log(self) -> None:
        """Forwards standard error to the log, so that the server never blocks on a full pipe."""
        stderr = self.process.stderr
        assert stderr is not None
        try:
            for line in stderr:
                text = line.decode(errors="replace").strip()
                self._last_lines.append(text)
                log.warning("%s", text)
        except (OSError, ValueError):
            return

    def _address(self) -> str:
        stdout = self.process.stdout
        assert stdout is not None
        deadline, printed = time.monotonic() + _START_SECONDS, b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while _READY not in printed or not printed.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise NotStarted(f"the private server was not ready within {_START_SECONDS:.0f} s")
                piece = os.read(stdout.fileno(), 4096)
                if not piece:
                    raise self._start_error()
                printed += piece
        return printed.rpartition(_READY)[2].decode().strip()

    def _start_error(self) -> NotStarted:
        self.process.wait(_END_SECONDS)
        self._log_thread.join(_END_SECONDS)
        reason = "\n".join(self._last_lines) or f"it exited with status {self.process.returncode}"
        return NotStarted(
            f"the private server did not start: {reason}\nrun 'belljar doctor' to see what this machine lacks, or set "
            "BELLJAR_SERVER=http://HOST:7117 to use a server"
        )

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        _close(self.process.stdin)
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log_thread.join(_END_SECONDS)
        _close(self.process.stdout)
        _close(self.process.stderr)

    def release(self) -> None:
        """Closes the pipes in a forked child, so that the server still ends with its parent."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            _close(pipe)
        # Not a child of this process, which therefore cannot wait for it.
        self.process.returncode = 0


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        pipe.close()


# Also held during a fork, so that a child never inherits a half-started server.
_lock = threading.RLock()
_private: _Private | None = None


def private() -> Server:
    """Returns the private server of this process, and starts it if necessary."""
    global _private
    with _lock:
        if _private is not None and not _private.is_alive():
            _private.end()
            _private = None
        if _private is None:
            _private = _Private()
        return _private.server


def end() -> None:
    """Stops the private server; the next call starts another."""
    global _private
    with _lock:
        if _private is not None:
            _private.end()
            _private = None


def _after_fork_in_child() -> None:
    global _lock, _private
    _lock = threading.RLock()
    if _private is not None:
        _private.release()
        _private = None


atexit.register(end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _lock.acquire(),
        after_in_parent=lambda: _lock.release(),
        after_in_child=_after_fork_in_child,
    )
