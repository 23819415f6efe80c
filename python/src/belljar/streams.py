"""Streams of output that end with a result. Closing a stream early closes its connection."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any, Generic, TypeVar

from ._events import Events
from ._http import AsyncTransport, Call, Transport
from .errors import ConnectionFailed

P = TypeVar("P")
T = TypeVar("T")


def _final(events: Events[T]) -> T:
    if events.last is None:
        raise ConnectionFailed("the server's response ended too early")
    return events.last


def _owned_events(transport: Transport, call: Call[Any], events: Events[Any]) -> Generator[Any, None, None]:
    """Yields the events, then closes the transport, which belongs to the stream."""
    try:
        yield from transport.events(call, events)
    finally:
        transport.close()


async def _owned_async_events(
    transport: AsyncTransport, call: Call[Any], events: Events[Any]
) -> AsyncGenerator[Any, None]:
    pieces = transport.events(call, events)
    try:
        async for piece in pieces:
            yield piece
    finally:
        await pieces.aclose()
        await transport.close()


class Stream(Generic[P, T]):
    """An iterator over pieces of output; :meth:`result` reads the rest and returns the final result."""

    def __init__(self, transport: Transport, call: Call[Any], events: Events[T], *, owned: bool = False) -> None:
        self._events = events
        self._pieces = _owned_events(transport, call, events) if owned else transport.events(call, events)

    def __iter__(self) -> Iterator[P]:
        return self

    def __next__(self) -> P:
        piece: P = next(self._pieces)
        return piece

    def result(self) -> T:
        for _ in self._pieces:
            pass
        return _final(self._events)

    def close(self) -> None:
        self._pieces.close()

    def __enter__(self) -> Stream[P, T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncStream(Generic[P, T]):
    """Async version of :class:`Stream`."""

    def __init__(self, transport: AsyncTransport, call: Call[Any], events: Events[T], *, owned: bool = False) -> None:
        self._events = events
        self._pieces = _owned_async_events(transport, call, events) if owned else transport.events(call, events)

    def __aiter__(self) -> AsyncIterator[P]:
        return self

    async def __anext__(self) -> P:
        piece: P = await self._pieces.__anext__()
        return piece

    async def result(self) -> T:
        async for _ in self._pieces:
            pass
        return _final(self._events)

    async def close(self) -> None:
        await self._pieces.aclose()

    async def __aenter__(self) -> AsyncStream[P, T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
