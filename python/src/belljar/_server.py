"""The server to talk to: a named one, or a private one of this process.

A private server listens on a loopback port of its own choosing, behind a key that only this process knows, and keeps
nothing. It ends when its standard input does, and this process holds the other end: so it ends with the process, even
by ``kill -9``. A forked child lets go of it and starts its own when it needs one.
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

_START_SECONDS = 60.0
_END_SECONDS = 10.0
_SAYS = b"listening on "
#: What is meant for other servers, or would have this one speak TLS with a name that is not its own.
_NOT_FOR_IT = ("BELLJAR_SERVER", "BELLJAR_API_KEY", "BELLJAR_TLS_CERT", "BELLJAR_TLS_KEY", "BELLJAR_DATA_DIR")


@dataclass(frozen=True)
class Server:
    """Where it is, and what opens it."""

    url: str
    key: str | None = field(repr=False)


def named(url: str | None, key: str | None) -> Server | None:
    """The server that was named, here or in the environment."""
    url = url or os.environ.get("BELLJAR_SERVER")
    if not url:
        if key:
            raise ValueError("api_key was given without a server; give server='http://HOST:7117' or set BELLJAR_SERVER")
        return None
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"server: {url!r} is no address; write for example http://127.0.0.1:7117")
    return Server(url.rstrip("/"), key or os.environ.get("BELLJAR_API_KEY"))


class _Private:
    """A server of this process."""

    def __init__(self) -> None:
        key = secrets.token_urlsafe(32)
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_IT}
        environment.setdefault("BELLJAR_LOG", "warn")
        self.process = subprocess.Popen(
            [find_binary(), "serve", "--temporary", "--allow-degraded", "--listen", "127.0.0.1:0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # No buffers: a forked child must be able to close these whatever another thread did.
            bufsize=0,
            env={**environment, "BELLJAR_ADMIN_KEY": key},
            # A terminal's Ctrl-C is for this process alone.
            start_new_session=True,
        )
        self._said: deque[str] = deque(maxlen=20)
        self._listener = threading.Thread(target=self._listen, name="belljar-log", daemon=True)
        self._listener.start()
        try:
            self.server = Server(self._address(), key)
        except BaseException:
            self.end()
            raise

    def _listen(self) -> None:
        """Passes on what it says, so that it never has to wait."""
        stderr = self.process.stderr
        assert stderr is not None
        try:
            for line in stderr:
                text = line.decode(errors="replace").strip()
                self._said.append(text)
                log.warning("%s", text)
        except (OSError, ValueError):
            return

    def _address(self) -> str:
        stdout = self.process.stdout
        assert stdout is not None
        deadline, said = time.monotonic() + _START_SECONDS, b""
        with selectors.DefaultSelector() as waiting:
            waiting.register(stdout, selectors.EVENT_READ)
            while _SAYS not in said or not said.endswith(b"\n"):
                if not waiting.select(max(0.0, deadline - time.monotonic())):
                    raise NotStarted(f"the private server was not ready within {_START_SECONDS:.0f} s")
                piece = os.read(stdout.fileno(), 4096)
                if not piece:
                    raise self._why()
                said += piece
        return said.rpartition(_SAYS)[2].decode().strip()

    def _why(self) -> NotStarted:
        self.process.wait(_END_SECONDS)
        self._listener.join(_END_SECONDS)
        reason = "\n".join(self._said) or f"it ended with status {self.process.returncode}"
        return NotStarted(
            f"the private server did not start: {reason}\n'belljar doctor' says what is missing on this machine; "
            "BELLJAR_SERVER=http://HOST:7117 uses a server elsewhere"
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
        self._listener.join(_END_SECONDS)
        _close(self.process.stdout)
        _close(self.process.stderr)

    def let_go(self) -> None:
        """In a forked child: it is the parent's, and must not be kept from ending with it."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            _close(pipe)
        # Not a child of this process, so nobody here can wait for it.
        self.process.returncode = 0


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        pipe.close()


# Held while a process forks as well: half a server would be nobody's.
_lock = threading.RLock()
_private: _Private | None = None


def private() -> Server:
    """The private server of this process, started where there is none."""
    global _private
    with _lock:
        if _private is not None and not _private.is_alive():
            _private.end()
            _private = None
        if _private is None:
            _private = _Private()
        return _private.server


def end() -> None:
    """Ends the private server; the next call starts another."""
    global _private
    with _lock:
        if _private is not None:
            _private.end()
            _private = None


def _forked() -> None:
    global _lock, _private
    _lock = threading.RLock()
    if _private is not None:
        _private.let_go()
        _private = None


atexit.register(end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: _lock.acquire(), after_in_parent=lambda: _lock.release(), after_in_child=_forked)
