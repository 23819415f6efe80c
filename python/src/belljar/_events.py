"""Parses streamed responses: lines, and server-sent events. Nothing here reads a socket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable, Generic, TypeVar

from . import _json
from ._failures import failure
from .errors import ConnectionFailed

T = TypeVar("T")

#: Maximum length of a line; even a result with large artifacts is far below.
_MAX_LINE_BYTES = 512 << 20


class Lines:
    """Splits bytes at line feeds only: text in JSON may contain other line separators."""

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
        if len(self._rest) > _MAX_LINE_BYTES:
            raise ConnectionFailed("the server sent a line that is too long")


@dataclass(frozen=True)
class Output:
    """A piece of a program's output."""

    #: stdout or stderr.
    stream: str
    text: str
    #: For a command in a sandbox: the offset of the first byte, counted over both streams.
    offset: int | None = None
    #: Number of bytes before it that are no longer stored.
    lost: int = 0


@dataclass(frozen=True)
class Change:
    """A change of a file in a watched folder."""

    #: created, modified, removed, moved_from, moved_to, attributes, overflow or gone.
    kind: str
    path: str
    directory: bool
    move: int | None


class Events(Generic[T]):
    """Decodes events: pieces while the response streams, and the final object of the event named ``end``."""

    def __init__(self, end: str, read: Callable[[Mapping[str, Any]], T]) -> None:
        self._end = end
        self._read = read
        self._name = ""
        self._lost = 0
        self.last: T | None = None

    def decode(self, lines: Iterable[bytes]) -> Iterator[Any]:
        """Yields the pieces in these lines."""
        return (piece for piece in map(self._decode_line, lines) if piece is not None)

    def _decode_line(self, line: bytes) -> Any:
        """Returns the piece that a line completes, if any."""
        field, _, value = line.partition(b":")
        if field == b"event":
            self._name = value.strip().decode()
        elif field == b"data":
            return self._decode_event(_json.loads(value))
        return None

    def _decode_event(self, data: dict[str, Any]) -> Any:
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
