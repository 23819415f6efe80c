"""A terminal in a sandbox, over a WebSocket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any

from ._failures import failure
from ._http import tls
from ._request import CommandLine, Json, command_request
from ._server import Server
from .errors import BelljarError, ConnectionFailed
from .states import CommandInfo, read_command

if TYPE_CHECKING:
    from typing_extensions import Self

_CONNECT = 10.0
_LONGEST = 16 << 20


def terminal_request(command: CommandLine, rows: int, columns: int) -> Json:
    return command_request(command, terminal={"rows": rows, "columns": columns}, env={"TERM": "xterm-256color"})


class _Terminal:
    """What both kinds know: where it is, what is said, what a message means."""

    def __init__(self, server: Server, sandbox: str, command: int) -> None:
        scheme, rest = server.url.split(":", 1)
        base = f"{'wss' if scheme == 'https' else 'ws'}:{rest}"
        self.arguments: dict[str, Any] = {
            "uri": f"{base}/v1/sandboxes/{sandbox}/commands/{command}/terminal",
            "additional_headers": {"Authorization": f"Bearer {server.key}"} if server.key else {},
            "open_timeout": _CONNECT,
            "proxy": None,
            "max_size": _LONGEST,
            "ssl": tls(server.url) if scheme == "https" else None,
        }
        #: How it ended, when it has.
        self.ended: CommandInfo | None = None

    def take(self, message: str | bytes) -> bytes | None:
        """The output in a message, if it is one."""
        if isinstance(message, bytes):
            return message
        said = json.loads(message)
        if "ended" in said:
            self.ended = read_command(said["ended"])
        elif "error" in said:
            raise failure(said)
        return None


def _size(rows: int, columns: int) -> str:
    return json.dumps({"resize": {"rows": rows, "columns": columns}})


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _missing(error: ImportError) -> BelljarError:
    return BelljarError(f"a terminal needs another package: pip install 'belljar[shell]' ({error})")


class Shell:
    """A terminal: iterating gives output until it ends. Closing it leaves the shell alone; it ends with the sandbox."""

    def __init__(self, server: Server, sandbox: str, command: int) -> None:
        try:
            from websockets.exceptions import WebSocketException
            from websockets.sync.client import connect
        except ImportError as error:
            raise _missing(error) from error
        self._terminal = _Terminal(server, sandbox, command)
        self._lost = (WebSocketException, OSError)
        try:
            self._open = ExitStack()
            self._socket: Any = self._open.enter_context(connect(**self._terminal.arguments))
        except self._lost as error:
            raise ConnectionFailed(f"the terminal cannot be reached: {error}") from error

    @property
    def ended(self) -> CommandInfo | None:
        """How it ended, when its output has been read to the end."""
        return self._terminal.ended

    def send(self, data: str | bytes) -> None:
        """Types something."""
        self._socket.send(_bytes(data))

    def resize(self, rows: int, columns: int) -> None:
        self._socket.send(_size(rows, columns))

    def __iter__(self) -> Iterator[bytes]:
        try:
            for message in self._socket:
                if output := self._terminal.take(message):
                    yield output
        except self._lost as error:
            raise ConnectionFailed(f"the terminal's connection broke: {error}") from error

    def read_until(self, text: str | bytes) -> bytes:
        """Output up to and with what holds these bytes; all of it where they never come."""
        read, wanted = b"", _bytes(text)
        for output in self:
            read += output
            if wanted in read:
                break
        return read

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncShell:
    """The same, awaited."""

    def __init__(self, terminal: _Terminal, opened: AsyncExitStack, socket: Any, lost: tuple[type[Exception], ...]):
        self._terminal = terminal
        self._open = opened
        self._socket = socket
        self._lost = lost

    @classmethod
    async def attach(cls, server: Server, sandbox: str, command: int) -> Self:
        try:
            from websockets.asyncio.client import connect
            from websockets.exceptions import WebSocketException
        except ImportError as error:
            raise _missing(error) from error
        terminal, lost, opened = _Terminal(server, sandbox, command), (WebSocketException, OSError), AsyncExitStack()
        try:
            return cls(terminal, opened, await opened.enter_async_context(connect(**terminal.arguments)), lost)
        except lost as error:
            raise ConnectionFailed(f"the terminal cannot be reached: {error}") from error

    @property
    def ended(self) -> CommandInfo | None:
        return self._terminal.ended

    async def send(self, data: str | bytes) -> None:
        await self._socket.send(_bytes(data))

    async def resize(self, rows: int, columns: int) -> None:
        await self._socket.send(_size(rows, columns))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for message in self._socket:
                if output := self._terminal.take(message):
                    yield output
        except self._lost as error:
            raise ConnectionFailed(f"the terminal's connection broke: {error}") from error

    async def read_until(self, text: str | bytes) -> bytes:
        read, wanted = b"", _bytes(text)
        async for output in self:
            read += output
            if wanted in read:
                break
        return read

    async def close(self) -> None:
        await self._open.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
