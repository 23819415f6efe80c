"""Background commands of a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _calls
from ._events import Events, Output
from ._http import AsyncTransport, Transport
from .states import CommandInfo, CommandResult, read_ended
from .streams import AsyncStream, Stream

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

CommandStream: TypeAlias = "Stream[Output, CommandResult]"
AsyncCommandStream: TypeAlias = "AsyncStream[Output, CommandResult]"


def command_events() -> Events[CommandResult]:
    return Events("ended", read_ended)


class Command:
    """A background command."""

    def __init__(self, transport: Transport, sandbox: str, started: CommandInfo) -> None:
        self._transport = transport
        self._sandbox = sandbox
        self.id = started.id
        self.pid = started.pid

    def info(self) -> CommandInfo:
        """Returns the current state of the command."""
        return self._transport.send(_calls.command_info(self._sandbox, self.id))

    def output(self, start: int = 0) -> CommandStream:
        """Streams past and future output from a byte offset on. There can be any number of readers."""
        return Stream(self._transport, _calls.command_output(self._sandbox, self.id, start), command_events())

    def wait(self) -> CommandInfo:
        """Waits until the command ends."""
        return self.output().result().info

    def write(self, data: str | bytes, *, close: bool = False) -> None:
        """Writes to standard input, which must be open (``stdin_open=True``)."""
        self._transport.send(_calls.command_stdin(self._sandbox, self.id, _bytes(data), close))

    def signal(self, signal: str | int = "SIGTERM") -> None:
        """Sends a signal to the process group of the command."""
        self._transport.send(_calls.command_signal(self._sandbox, self.id, signal))

    def kill(self) -> None:
        self.signal("SIGKILL")

    def __repr__(self) -> str:
        return f"<Command {self.id} of {self._sandbox}>"


class AsyncCommand:
    """Async version of :class:`Command`."""

    def __init__(self, transport: AsyncTransport, sandbox: str, started: CommandInfo) -> None:
        self._transport = transport
        self._sandbox = sandbox
        self.id = started.id
        self.pid = started.pid

    async def info(self) -> CommandInfo:
        return await self._transport.send(_calls.command_info(self._sandbox, self.id))

    def output(self, start: int = 0) -> AsyncCommandStream:
        return AsyncStream(self._transport, _calls.command_output(self._sandbox, self.id, start), command_events())

    async def wait(self) -> CommandInfo:
        return (await self.output().result()).info

    async def write(self, data: str | bytes, *, close: bool = False) -> None:
        await self._transport.send(_calls.command_stdin(self._sandbox, self.id, _bytes(data), close))

    async def signal(self, signal: str | int = "SIGTERM") -> None:
        await self._transport.send(_calls.command_signal(self._sandbox, self.id, signal))

    async def kill(self) -> None:
        await self.signal("SIGKILL")

    def __repr__(self) -> str:
        return f"<AsyncCommand {self.id} of {self._sandbox}>"


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data
