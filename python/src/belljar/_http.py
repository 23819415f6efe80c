"""Calls are data; two thin transports send them, one that waits and one that awaits.

What is said, how an answer is read and when to try again is decided here, once for both.
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

#: Seconds without a byte after which a server is gone. Where a program is waited for, keep-alives of TCP say so.
_SILENCE = 60.0
_CONNECT = 10.0
#: Longer than this is not waited for; the caller is told when to try again.
_LONGEST_WAIT = 30.0


def _alive() -> list[tuple[int, int, int]]:
    """Has the system notice a peer that is gone, within about a minute."""
    wanted = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3}
    known = [(name, seconds) for name, seconds in wanted.items() if hasattr(socket, name)]
    options = [(socket.IPPROTO_TCP, int(getattr(socket, name)), seconds) for name, seconds in known]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *options]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Json | None = None
    content: bytes | None = None
    #: A body in pieces, from its beginning each time.
    pieces: Callable[[], Iterator[bytes]] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Whether a program is waited for, which takes as long as it takes.
    waits: bool = False
    #: Whether it may be sent twice: it changes nothing, or the server knows it again.
    repeatable: bool = False
    #: Whether a program in a sandbox answers: its answer is given whatever its status.
    passed: bool = False

    def arguments(self, server: _server.Server) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {server.key}"} if server.key else {}
        if self.content is not None or self.pieces is not None:
            headers["content-type"] = "application/octet-stream"
        return {
            "method": self.method,
            "url": server.url + self.path,
            "params": self.params,
            "headers": {**headers, **self.headers},
            "timeout": httpx.Timeout(_SILENCE, connect=_CONNECT, read=None if self.waits else _SILENCE, pool=None),
            **({} if self.json is None else {"json": self.json}),
            **({} if self.content is None else {"content": self.content}),
        }


class Attempts:
    """When a call is sent again: nobody has run it, or it may run twice."""

    def __init__(self, call: Call[Any], retries: int) -> None:
        self._call = call
        self._left = retries
        self._pause = 0.1

    def after(self, error: BelljarError) -> float:
        """How many seconds to wait. Raises the error where it is not to be tried again."""
        wait = self._wait(error)
        if wait is None or self._left <= 0 or wait > _LONGEST_WAIT:
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
        # So that not everybody comes back at the same moment.
        return self._pause * random.uniform(0.75, 1.25)  # noqa: S311 (no secret)


class _NotSent(ConnectionFailed):
    """Nobody was there."""


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        url = error.request.url
        raise _NotSent(f"{url.scheme}://{url.netloc.decode()} cannot be reached: {error}") from error
    except httpx.TransportError as error:
        raise ConnectionFailed(f"the connection to the server broke: {error or type(error).__name__}") from error


def _raised(call: Call[Any], response: httpx.Response) -> httpx.Response:
    """Raises what is an error of the server's; a program does not know the name that the server gave to the request."""
    error = failure_of(response)
    if call.passed and (error.request_id is None or error.request_id != response.headers.get("x-request-id")):
        return response
    raise error


def tls(url: str) -> ssl.SSLContext:
    """Whom to trust at an address."""
    if not url.startswith("https:"):
        # Trusts nobody: nothing is encrypted here, and reading the system's authorities takes a while.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.create_default_context()
    if authorities := os.environ.get("BELLJAR_CA_CERT"):
        context.load_verify_locations(authorities)
    return context


class Transport:
    """Waits. May be used by any number of threads, and after a fork."""

    def __init__(self, find: Callable[[], _server.Server], retries: int) -> None:
        self._find = find
        self._retries = retries
        #: By process: connections of a parent are the parent's.
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
        """The answer before its body; one that is an error is raised."""
        attempts = Attempts(call, self._retries)
        while True:
            try:
                response = self._once(call)
                break
            except BelljarError as error:
                time.sleep(attempts.after(error))
        try:
            yield response
        finally:
            response.close()

    def bytes(self, call: Call[Any]) -> Generator[builtins.bytes, None, None]:
        """The body of an answer, as it comes."""
        with self.open(call) as response:
            body = response.iter_bytes()
            while True:
                with _translated():
                    piece = next(body, None)
                if piece is None:
                    return
                yield piece

    def events(self, call: Call[Any], events: Events[Any]) -> Generator[Any, None, None]:
        """What the events of an answer tell, as they come."""
        lines, body = Lines(), self.bytes(call)
        try:
            for piece in body:
                yield from events.told_by(lines.feed(piece))
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
        return _raised(call, response)

    def _connected(self, server: _server.Server) -> httpx.Client:
        client = self._clients.get(os.getpid())
        if client is None:
            transport = httpx.HTTPTransport(verify=tls(server.url), socket_options=_alive())
            made = httpx.Client(transport=transport, trust_env=False)
            # No lock, since one that is held during a fork stays so for ever.
            client = self._clients.setdefault(os.getpid(), made)
            if client is not made:
                made.close()
        return client

    def close(self) -> None:
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()


class AsyncTransport:
    """Awaits. Belongs to one event loop."""

    def __init__(self, find: Callable[[], _server.Server], retries: int) -> None:
        self._find = find
        self._retries = retries
        self._client: httpx.AsyncClient | None = None

    async def server(self) -> _server.Server:
        # The first one may have to start it.
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
                await asyncio.sleep(attempts.after(error))
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
                for told in events.told_by(lines.feed(piece)):
                    yield told
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
        return _raised(call, response)

    def _connected(self, server: _server.Server) -> httpx.AsyncClient:
        if self._client is None:
            transport = httpx.AsyncHTTPTransport(verify=tls(server.url), socket_options=_alive())
            self._client = httpx.AsyncClient(transport=transport, trust_env=False)
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
        self._client = None


async def _awaited(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
