"""Terminals in a sandbox, over WebSocket."""

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

_CONNECT_SECONDS = 10.0
_MAX_MESSAGE_BYTES = 16 << 20


def terminal_request(command: CommandLine, rows: int, columns: int) -> Json:
    return command_request(command, terminal={"rows": rows, "columns": columns}, env={"TERM": "xterm-256color"})


class _Terminal:
    """Shared by :class:`Shell` and :class:`AsyncShell`: the address, and how to decode messages."""

    def __init__(self, server: Server, sandbox: str, command: int) -> None:
        scheme, rest = server.url.split(":", 1)
        base = f"{'wss' if scheme == 'https' else 'ws'}:{rest}"
        self.arguments: dict[str, Any] = {
            "uri": f"{base}/v1/sandboxes/{sandbox}/commands/{command}/terminal",
            "additional_headers": {"Authorization": f"Bearer {server.key}"} if server.key else {},
            "open_timeout": _CONNECT_SECONDS,
            "proxy": None,
            "max_size": _MAX_MESSAGE_BYTES,
            "ssl": tls(server.url) if scheme == "https" else None,
        }
        #: The final state, once the terminal has ended.
        self.ended: CommandInfo | None = None

    def decode(self, message: str | bytes) -> bytes | None:
        """Returns the output in a message, if it contains any."""
        if isinstance(message, bytes):
            return message
        event = json.loads(message)
        if "ended" in event:
            self.ended = read_command(event["ended"])
        elif "error" in event:
            raise failure(event)
        return None


def _size(rows: int, columns: int) -> str:
    return json.dumps({"resize": {"rows": rows, "columns": columns}})


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _missing(error: ImportError) -> BelljarError:
    return BelljarError(f"terminals need another package: pip install 'belljar[shell]' ({error})")


class Shell:
    """A terminal. Iterate to read its output. Closing it leaves the shell running until the sandbox ends."""

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
        """The final state of the command, once all output has been read."""
        return self._terminal.ended

    def send(self, data: str | bytes) -> None:
        """Sends input."""
        self._socket.send(_bytes(data))

    def resize(self, rows: int, columns: int) -> None:
        self._socket.send(_size(rows, columns))

    def __iter__(self) -> Iterator[bytes]:
        try:
            for message in self._socket:
                if output := self._terminal.decode(message):
                    yield output
        except self._lost as error:
            raise ConnectionFailed(f"the terminal's connection broke: {error}") from error

    def read_until(self, text: str | bytes) -> bytes:
        """Returns the output up to and including these bytes, or all of it if they never appear."""
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
    """Async version of :class:`Shell`."""

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
                if output := self._terminal.decode(message):
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
