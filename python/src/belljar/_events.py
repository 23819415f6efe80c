"""Answers that come in pieces: lines, and server-sent events made of them. Nothing here reads a socket."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable, Generic, TypeVar

from ._failures import failure
from .errors import ConnectionFailed

T = TypeVar("T")

#: The longest line: a result with all that it may carry is far below.
_LONGEST = 512 << 20


class Lines:
    """Cuts bytes at line feeds, and nowhere else: text in JSON may have other ends of lines in it."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        searched = len(self._rest)
        self._rest += piece
        begin = 0
        while (end := self._rest.find(b"\n", max(begin, searched))) >= 0:
            yield bytes(self._rest[begin:end])
            begin = end + 1
        del self._rest[:begin]
        if len(self._rest) > _LONGEST:
            raise ConnectionFailed("the server sent a line that is too long to be one")


@dataclass(frozen=True)
class Output:
    """A piece of what a program wrote."""

    #: stdout or stderr.
    stream: str
    text: str
    #: Of a command in a sandbox: the number of its first byte, counted over both streams.
    offset: int | None = None
    #: So many bytes before it are no longer kept.
    lost: int = 0


@dataclass(frozen=True)
class Change:
    """Something that happened to a file in a watched folder."""

    #: created, modified, removed, moved_from, moved_to, attributes, overflow or gone.
    kind: str
    path: str
    directory: bool
    move: int | None


class Events(Generic[T]):
    """Reads events: pieces on the way, and what is left at the end. ``end`` names that last one."""

    def __init__(self, end: str, read: Callable[[Mapping[str, Any]], T]) -> None:
        self._end = end
        self._read = read
        self._name = ""
        self._lost = 0
        self.last: T | None = None

    def told_by(self, lines: Iterable[bytes]) -> Iterator[Any]:
        """The pieces in these lines."""
        return (piece for piece in map(self._take, lines) if piece is not None)

    def _take(self, line: bytes) -> Any:
        """What a line tells, if it tells something by itself."""
        field, _, value = line.partition(b":")
        if field == b"event":
            self._name = value.strip().decode()
        elif field == b"data":
            return self._told(json.loads(value))
        return None

    def _told(self, data: dict[str, Any]) -> Any:
        if self._name == "output":
            lost, self._lost = self._lost, 0
            return Output(data["stream"], data["text"], data.get("offset"), lost)
        if self._name == "lost":
            self._lost += data["bytes"]
        elif self._name == "change":
            return Change(data["kind"], data["path"], data["directory"], data["move"])
        elif self._name == "error":
            raise failure(data)
        elif self._name == self._end:
            self.last = self._read(data)
        return None
