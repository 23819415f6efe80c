"""Sends calls over HTTP with two thin transports: one blocking, one async.

Request arguments, error handling and retries are shared by both::

    run, Sandbox.run …   _request.py   builds the request object from arguments
                         _calls.py     every call as data: request, how its response is read, whether it is repeatable
      Client, Sandbox ─▶ _http.py      Transport blocks, AsyncTransport awaits
                         _events.py    bytes to lines to events, without a socket
                         _server.py    the named server, or a private one

A call that may have run something is sent again only with an idempotency key. The code of an error says whether
something has run (``errors.NOTHING_RAN``); the HTTP status does not.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import random
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, TypeVar

import httpx

from . import _server
from ._events import Events, Lines
from ._failures import failure_of
from ._request import Json
from .errors import NOTHING_RAN, TRY_LATER, BelljarError, ConnectionFailed, RequestFailed

T = TypeVar("T")

#: Read timeout. Calls that wait for a program have none; TCP keep-alive detects a dead server there.
_READ_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
#: A longer ``Retry-After`` is not waited for but raised to the caller.
_MAX_RETRY_SECONDS = 30.0


def _keepalive() -> list[tuple[int, int, int]]:
    """Returns socket options that detect a dead peer within about a minute."""
    wanted = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3}
    known = [(name, seconds) for name, seconds in wanted.items() if hasattr(socket, name)]
    options = [(socket.IPPROTO_TCP, int(getattr(socket, name)), seconds) for name, seconds in known]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *options]


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and how to read its response."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Json | None = None
    content: bytes | None = None
    #: Returns an iterator over the body; called again for each attempt.
    pieces: Callable[[], Iterator[bytes]] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Whether the response waits for a program, for an unbounded time.
    waits: bool = False
    #: Whether it may be sent twice: it is idempotent, or has an idempotency key.
    repeatable: bool = False
    #: Whether a program in a sandbox answers; its response is returned whatever its status.
    proxied: bool = False

    def arguments(self, server: _server.Server) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {server.key}"} if server.key else {}
        if self.content is not None or self.pieces is not None:
            headers["content-type"] = "application/octet-stream"
        return {
            "method": self.method,
            "url": server.url + self.path,
            "params": self.params,
            "headers": {**headers, **self.headers},
            "timeout": httpx.Timeout(
                _READ_SECONDS, connect=_CONNECT_SECONDS, read=None if self.waits else _READ_SECONDS, pool=None
            ),
            **({} if self.json is None else {"json": self.json}),
            **({} if self.content is None else {"content": self.content}),
        }


class Attempts:
    """Decides when a call is retried: if nothing has run, or if it may run twice."""

    def __init__(self, call: Call[Any], retries: int) -> None:
        self._call = call
        self._left = retries
        self._pause = 0.1

    def delay_after(self, error: BelljarError) -> float:
        """Returns the seconds to wait before the next attempt. Raises the error if there is none."""
        wait = self._wait(error)
        if wait is None or self._left <= 0 or wait > _MAX_RETRY_SECONDS:
            raise error
        self._left -= 1
        return wait

    def _wait(self, error: BelljarError) -> float | None:
        if isinstance(error, RequestFailed):
            again = error.code in NOTHING_RAN or (error.code in TRY_LATER and self._call.repeatable)
            return (self._next_pause() if error.retry_after is None else error.retry_after) if again else None
        if isinstance(error, _NotSent) or (isinstance(error, ConnectionFailed) and self._call.repeatable):
            return self._next_pause()
        return None

    def _next_pause(self) -> float:
        self._pause *= 2
        # Jitter, so that clients do not all retry at the same moment.
        return self._pause * random.uniform(0.75, 1.25)  # noqa: S311 (no secret)


class _NotSent(ConnectionFailed):
    """The request was never sent, so nothing has run."""


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        url = error.request.url
        raise _NotSent(f"{url.scheme}://{url.netloc.decode()} cannot be reached: {error}") from error
    except httpx.TransportError as error:
        raise ConnectionFailed(f"the connection to the server broke: {error or type(error).__name__}") from error


def _raise_error(call: Call[Any], response: httpx.Response) -> httpx.Response:
    """Raises an error of the server; returns an error response of a program, which cannot know the request id."""
    error = failure_of(response)
    if call.proxied and (error.request_id is None or error.request_id != response.headers.get("x-request-id")):
        return response
    raise error


def tls(url: str) -> ssl.SSLContext:
    """Returns the TLS context for an address."""
    if not url.startswith("https:"):
        # Never used: plain HTTP has no TLS, and loading the system's certificate authorities is slow.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.create_default_context()
    if authorities := os.environ.get("BELLJAR_CA_CERT"):
        context.load_verify_locations(authorities)
    return context


class Transport:
    """The blocking transport. Can be used by any number of threads, and after a fork."""

    def __init__(self, find: Callable[[], _server.Server], retries: int) -> None:
        self._find = find
        self._retries = retries
        #: One per process id: a forked child must not use its parent's connections.
        self._clients: dict[int, httpx.Client] = {}

    def server(self) -> _server.Server:
        return self._find()

    def send(self, call: Call[T]) -> T:
        with self.open(call) as response:
            with _translated():
                response.read()
            return call.read(response)

    @contextmanager
    def open(self, call: Call[Any]) -> Iterator[httpx.Response]:
        """Sends a call, with retries, and yields the response before its body is read. Raises error responses."""
        attempts = Attempts(call, self._retries)
        while True:
            try:
                response = self._once(call)
                break
            except BelljarError as error:
                time.sleep(attempts.delay_after(error))
        try:
            yield response
        finally:
            response.close()

    def bytes(self, call: Call[Any]) -> Generator[builtins.bytes, None, None]:
        """Yields the body of the response as it arrives."""
        with self.open(call) as response:
            body = response.iter_bytes()
            while True:
                with _translated():
                    piece = next(body, None)
                if piece is None:
                    return
                yield piece

    def events(self, call: Call[Any], events: Events[Any]) -> Generator[Any, None, None]:
        """Yields the decoded events of the response as they arrive."""
        lines, body = Lines(), self.bytes(call)
        try:
            for piece in body:
                yield from events.decode(lines.feed(piece))
        finally:
            body.close()

    def _once(self, call: Call[Any]) -> httpx.Response:
        server = self._find()
        arguments = call.arguments(server)
        if call.pieces is not None:
            arguments["content"] = call.pieces()
        with _translated():
            client = self._connected(server)
            response = client.send(client.build_request(**arguments), stream=True)
            if response.is_success:
                return response
            response.read()
        response.close()
        return _raise_error(call, response)

    def _connected(self, server: _server.Server) -> httpx.Client:
        client = self._clients.get(os.getpid())
        if client is None:
            transport = httpx.HTTPTransport(verify=tls(server.url), socket_options=_keepalive())
            made = httpx.Client(transport=transport, trust_env=False)
            # No lock: one that is held during a fork would stay locked in the child.
            client = self._clients.setdefault(os.getpid(), made)
            if client is not made:
                made.close()
        return client

    def close(self) -> None:
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()


class AsyncTransport:
    """The async transport. Belongs to one event loop."""

    def __init__(self, find: Callable[[], _server.Server], retries: int) -> None:
        self._find = find
        self._retries = retries
        self._client: httpx.AsyncClient | None = None

    async def server(self) -> _server.Server:
        # The first call may have to start the private server, which blocks.
        return await asyncio.get_running_loop().run_in_executor(None, self._find)

    async def send(self, call: Call[T]) -> T:
        async with self.open(call) as response:
            with _translated():
                await response.aread()
            return call.read(response)

    @asynccontextmanager
    async def open(self, call: Call[Any]) -> AsyncIterator[httpx.Response]:
        attempts = Attempts(call, self._retries)
        while True:
            try:
                response = await self._once(call)
                break
            except BelljarError as error:
                await asyncio.sleep(attempts.delay_after(error))
        try:
            yield response
        finally:
            await response.aclose()

    async def bytes(self, call: Call[Any]) -> AsyncGenerator[builtins.bytes, None]:
        async with self.open(call) as response:
            body = response.aiter_bytes().__aiter__()
            while True:
                with _translated():
                    try:
                        piece = await body.__anext__()
                    except StopAsyncIteration:
                        return
                yield piece

    async def events(self, call: Call[Any], events: Events[Any]) -> AsyncGenerator[Any, None]:
        lines, body = Lines(), self.bytes(call)
        try:
            async for piece in body:
                for decoded in events.decode(lines.feed(piece)):
                    yield decoded
        finally:
            await body.aclose()

    async def _once(self, call: Call[Any]) -> httpx.Response:
        server = await self.server()
        arguments = call.arguments(server)
        if call.pieces is not None:
            arguments["content"] = _awaited(call.pieces())
        with _translated():
            client = self._connected(server)
            response = await client.send(client.build_request(**arguments), stream=True)
            if response.is_success:
                return response
            await response.aread()
        await response.aclose()
        return _raise_error(call, response)

    def _connected(self, server: _server.Server) -> httpx.AsyncClient:
        if self._client is None:
            transport = httpx.AsyncHTTPTransport(verify=tls(server.url), socket_options=_keepalive())
            self._client = httpx.AsyncClient(transport=transport, trust_env=False)
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
        self._client = None


async def _awaited(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
