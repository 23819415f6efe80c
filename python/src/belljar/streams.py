"""Output as it comes, and then the result. Closing one before its end lets go of what it shows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any, Generic, TypeVar

from ._events import Events
from ._http import AsyncTransport, Call, Transport
from .errors import ConnectionFailed

P = TypeVar("P")
T = TypeVar("T")


def _ended(events: Events[T]) -> T:
    if events.last is None:
        raise ConnectionFailed("the server's answer broke off before its end")
    return events.last


def _told(transport: Transport, call: Call[Any], events: Events[Any]) -> Generator[Any, None, None]:
    """With a transport of its own, which is closed behind it."""
    try:
        yield from transport.events(call, events)
    finally:
        transport.close()


async def _atold(transport: AsyncTransport, call: Call[Any], events: Events[Any]) -> AsyncGenerator[Any, None]:
    pieces = transport.events(call, events)
    try:
        async for piece in pieces:
            yield piece
    finally:
        await pieces.aclose()
        await transport.close()


class Stream(Generic[P, T]):
    """An iterator over pieces; :meth:`result` reads the rest and gives what there is at the end."""

    def __init__(self, transport: Transport, call: Call[Any], events: Events[T], *, owned: bool = False) -> None:
        self._events = events
        self._pieces = _told(transport, call, events) if owned else transport.events(call, events)

    def __iter__(self) -> Iterator[P]:
        return self

    def __next__(self) -> P:
        piece: P = next(self._pieces)
        return piece

    def result(self) -> T:
        for _ in self._pieces:
            pass
        return _ended(self._events)

    def close(self) -> None:
        self._pieces.close()

    def __enter__(self) -> Stream[P, T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncStream(Generic[P, T]):
    """The same, awaited."""

    def __init__(self, transport: AsyncTransport, call: Call[Any], events: Events[T], *, owned: bool = False) -> None:
        self._events = events
        self._pieces = _atold(transport, call, events) if owned else transport.events(call, events)

    def __aiter__(self) -> AsyncIterator[P]:
        return self

    async def __anext__(self) -> P:
        piece: P = await self._pieces.__anext__()
        return piece

    async def result(self) -> T:
        async for _ in self._pieces:
            pass
        return _ended(self._events)

    async def close(self) -> None:
        await self._pieces.aclose()

    async def __aenter__(self) -> AsyncStream[P, T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
